"""torchrun may have reaped a rank before the guard has looked at it, on a busy host."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs, changed_program, local_runs

from orchestrator.hosts.node_program import NodeProgram, node_program
from orchestrator.node.host import processes

FAILS = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
def last(*_):
    (folder / "asked").touch()
    while not (folder / "end").exists():
        time.sleep(0.01)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, last)
(folder / (rank + ".new")).write_text("%d %d" % (os.getpid(), os.getppid()))
(folder / (rank + ".new")).rename(folder / rank)
while rank == "1" or not (folder / "fail").exists():
    time.sleep(0.01)
raise KeyError("the_missing_column")
"""


ENDS = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(folder / (rank + ".new")).write_text("%d %d" % (os.getpid(), os.getppid()))
(folder / (rank + ".new")).rename(folder / rank)
while rank == "0" or not (folder / "fail").exists():
    time.sleep(0.01)
print("ENOSPC", file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
"""


def kernel_keeps_the_status() -> bool:
    """Since Linux 6.15."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    process = processes.identify(pid)
    assert process is not None
    handle = processes.pidfd(process)
    assert handle is not None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        return processes.status_of_ended(process, handle) is not None
    finally:
        os.close(handle)


def of_older_kernels() -> NodeProgram:
    """The node program, whose request any kernel answers as one that does not know it."""
    return changed_program("processes.py", {b"= 0xC040FF0B, ": b"= 0xC040FF7B, "})


@pytest.fixture(
    params=[
        pytest.param(
            True, marks=pytest.mark.skipif(not kernel_keeps_the_status(), reason="Linux before 6.15"), id="kernel-6.15"
        ),
        pytest.param(False, id="older-kernel"),
    ]
)
def is_kept(request: pytest.FixtureRequest) -> bool:
    """Whether the kernel keeps how a process ended that has been reaped."""
    return bool(request.param)


@pytest.fixture
def runs(is_kept: bool, tmp_path: Path) -> Iterator[Runs]:
    with local_runs(tmp_path / "hosts", node_program() if is_kept else of_older_kernels()) as found:
        yield found


def test_a_rank_that_torchrun_stopped_is_not_the_first_failure(runs: Runs, tmp_path: Path, is_kept: bool) -> None:
    run = runs.start(FAILS, str(tmp_path), nproc=(2,), torchrun=True)
    wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), 20, "both ranks are there")
    failing, agent = map(int, (tmp_path / "0").read_text().split())
    guard = run.guard()
    wait_until(lambda: failing in watched(guard), 20, "the guard watches it")
    processes.send(guard, signal.SIGSTOP)
    (tmp_path / "fail").touch()
    wait_until(lambda: not os.path.exists(f"/proc/{failing}"), 20, "torchrun has reaped the rank that failed")
    wait_until((tmp_path / "asked").exists, 20, "and stops the other one")
    os.kill(agent, signal.SIGSTOP)  # it shall not reap the other one as well
    wait_until(lambda: has_stopped(agent), 20, "torchrun has stopped")
    processes.send(guard, signal.SIGCONT)
    (tmp_path / "end").touch()
    try:
        wait_until(lambda: "first failure" in run_log(run), 20, "a failure is known")
    finally:
        with contextlib.suppress(ProcessLookupError):  # the run is being stopped
            os.kill(agent, signal.SIGCONT)
    (record,) = run.wait_over()
    first = record["verdict"]["first_failure"]
    assert (first["rank"], first["exit_code"], first["signal"]) == (0, 1 if is_kept else None, None)
    assert first["said"] == "KeyError: 'the_missing_column'"


def test_the_only_rank_of_a_host_is_named_though_torchrun_has_ended_too(
    runs: Runs, tmp_path: Path, is_kept: bool
) -> None:
    run = runs.start(ENDS, str(tmp_path), nproc=(1, 1), torchrun=True)
    wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), 20, "both ranks are there")
    failing, agent = map(int, (tmp_path / "1").read_text().split())
    guard = run.guard(1)
    wait_until(lambda: failing in watched(guard), 20, "the guard watches it")
    processes.send(guard, signal.SIGSTOP)
    (tmp_path / "fail").touch()
    wait_until(lambda: not os.path.exists(f"/proc/{failing}"), 20, "torchrun has reaped its rank")
    wait_until(lambda: has_ended(agent), 20, "and ends")
    processes.send(guard, signal.SIGCONT)
    first = run.wait_over()[0]["verdict"]["first_failure"]
    assert (first["rank"], first["signal"]) == (1, "SIGUSR1" if is_kept else None)
    assert first["said"] == "ENOSPC"


def watched(guard: processes.Process) -> set[int]:
    """The processes of which it has a pidfd."""
    found = set()
    for info in Path(f"/proc/{guard.pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("Pid:")}
    return found


def has_stopped(pid: int) -> bool:
    status = processes.stat(pid)
    return status is not None and status.state == "T"


def has_ended(pid: int) -> bool:
    status = processes.stat(pid)
    return status is None or status.state == "Z"


def run_log(run: Run) -> str:
    return "".join(text.decode() for stream, text in run.journal().items() if ".run." in stream)
