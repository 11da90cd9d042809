"""A run that is restarted many times: guard and recorder hold no more after the last restart than after the first.

`CHAOS=full` (make chaos) restarts it 120 times.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, impatient_program, local_runs

from orchestrator.node.host import processes

RESTARTS = 120 if os.environ.get("CHAOS") == "full" else 8
RANKS = 8
F_GETPIPE_SZ = 1032

# rank 0 writes much in its last moment
TRAIN = """
import os, sys, time
attempt, rank = int(os.environ["DDP_ORCH_ATTEMPT"]), os.environ["RANK"]
print("ready", attempt, rank, flush=True)
while not os.path.exists("go-%d" % attempt):
    time.sleep(0.01)
if attempt > int(sys.argv[1]):
    sys.exit(0)
if rank == "0":
    os.write(1, b"x" * 300_000 + b"\\nlast\\n")
    sys.exit(3)
time.sleep(300)
"""


def opened(process: processes.Process) -> Iterator[tuple[Path, str]]:
    """The descriptors of a process and what they stand for."""
    for handle in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            yield handle, os.readlink(handle)


def kinds(process: processes.Process) -> Counter[str]:
    """The descriptors that last, by what they are: a sample of the machine opens and closes others."""
    found = [target.rpartition(".")[2] for _, target in opened(process) if re.search(r"\.(out|err|seg|idx)$", target)]
    found += [target.partition(":")[0] for _, target in opened(process) if re.match("socket:|anon_inode:", target)]
    return Counter(found)


def pipe_memory(guard: processes.Process) -> int:
    """Bytes that the pipes of a run may take of the user's share. The guard keeps all of them."""
    total = 0
    for handle, target in opened(guard):
        if "/fifo/" in target:
            with open(os.open(handle, os.O_RDWR | os.O_NONBLOCK), "rb") as fifo:
                total += fcntl.fcntl(fifo, F_GETPIPE_SZ)
    return total


def spent(*of: processes.Process | None) -> float:
    """Seconds on a processor."""
    return sum(int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) / 1e9 for one in of if one)


def attempt_runs(run: Run, attempt: int) -> None:
    """Until all its ranks are there, and nothing is open of the attempt before."""
    for rank in range(RANKS):
        path = run.folder() / "log" / f"{attempt}.{rank}.out.{0:012d}.seg"
        wait_until(lambda path=path: path.exists() and path.stat().st_size, 30.0, f"attempt {attempt}, rank {rank}")
    fifos = run.folder() / "fifo"
    names = [path.name for path in fifos.iterdir()]
    wait_until(
        lambda: all(path.name.startswith((f"{attempt}.", "register")) for path in fifos.iterdir()),
        5.0,
        f"the FIFOs of attempts before {attempt} are gone: {names}",
    )


def holds(run: Run) -> tuple[Counter[str], Counter[str], int]:
    """What guard and recorder have open, and the pipes."""
    recorder = wait_until(run.recorder, 10.0, "there is a recorder")
    return kinds(run.guard()), kinds(recorder), pipe_memory(run.guard())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("torchrun", [False, True])
def test_what_a_restart_costs_is_given_back_and_no_byte_is_lost(tmp_path: Path, torchrun: bool) -> None:
    took: list[float] = []
    cost: list[float] = []
    with local_runs(tmp_path, impatient_program()) as runs:
        run = runs.start(
            TRAIN, str(RESTARTS), nproc=(RANKS,), torchrun=torchrun, options=f"max_restarts: {RESTARTS + 1}"
        )
        attempt_runs(run, 1)
        for attempt in range(1, RESTARTS + 1):
            before, began = spent(run.guard(), run.recorder()), time.monotonic()
            (tmp_path / f"go-{attempt}").touch()
            attempt_runs(run, attempt + 1)
            took.append(time.monotonic() - began)
            cost.append(spent(run.guard(), run.recorder()) - before)
            if attempt == 2:  # of the ranks that torchrun has started, the guard has pidfds
                pidfds = RANKS if torchrun else 0
                third = wait_until(
                    lambda pidfds=pidfds: (found := holds(run))[0]["anon_inode"] == pidfds and found, 5.0, "its pidfds"
                )
            if attempt > 2:
                wait_until(
                    lambda third=third: holds(run) == third, 5.0, f"attempt {attempt + 1} holds {third}: {holds(run)}"
                )
            if attempt == 4:  # its successor has to close what it finds
                processes.send(wait_until(run.recorder, 10.0, "there is a recorder"), signal.SIGKILL)
        (tmp_path / f"go-{RESTARTS + 1}").touch()
        (record,) = run.wait_over()
        assert record["verdict"]["state"] == "succeeded"
        written = run.journal()
    for attempt in range(1, RESTARTS + 1):
        assert written[f"{attempt}.0.out"] == f"ready {attempt} 0\n".encode() + b"x" * 300_000 + b"\nlast\n"
    guard, recorder, pipes = third
    print(
        f"{RESTARTS} restarts of {RANKS} ranks: guard {sum(guard.values())}, recorder {sum(recorder.values())} "
        f"descriptors, {pipes >> 20} MiB of pipes; seconds and CPU seconds of a restart: "
        f"{statistics.median(took[1:4]):.2f} {statistics.median(cost[1:4]):.3f} at first, "
        f"{statistics.median(took[-3:]):.2f} {statistics.median(cost[-3:]):.3f} at last",
        file=sys.stderr,
    )
