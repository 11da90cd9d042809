"""Ranks of the bundled trainer as plain processes on the loopback device, without a launcher."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds; on two idle cores no run takes more than twenty
OF_A_LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "DDP_ORCH_OUTPUT_DIR",
    "DDP_ORCH_MEMORY_DIR",
    "SLURM_STEP_ID",
)


def environment(**extra: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key not in OF_A_LAUNCHER}
    return {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """SIGTERM to `process` after LIMIT and on the way out: SIGKILL to torchrun would leave its workers behind."""
    limit = threading.Timer(LIMIT, process.terminate)
    limit.start()
    try:
        yield
    finally:
        limit.cancel()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def started(
    world_size: int, cwd: Path, *what: str, out: Sequence[str] = (), **extra: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """`python WHAT` as so many ranks, each its own host as far as it can tell: LOCAL_RANK is 0. `out`: of each rank."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(world_size):
            place = environment(
                RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **extra
            )
            argv = [sys.executable, *what, *(f"--out={each}" for each in out[rank : rank + 1])]
            ranks.append(subprocess.Popen(argv, cwd=cwd, env=place, text=True, stdout=PIPE, stderr=STDOUT))
            stack.enter_context(ended(ranks[-1]))
        yield ranks


def outputs_of(ranks: Sequence[subprocess.Popen[str]]) -> list[str]:
    return [rank.communicate()[0] for rank in ranks]


def trainings(world_size: int, cwd: Path, *argvs: Sequence[str], **extra: str) -> list[str]:
    """What rank 0 said in each of the trainings, done one after the other by the same ranks."""
    script = str(Path(__file__).with_name("many_trainings.py"))
    with started(world_size, cwd, script, json.dumps(argvs), **extra) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(outputs)
    return re.split(r"(?m)^training \d+\n", outputs[0])[1:]


def values(output: str, start: str) -> dict[str, str]:
    """The `key:value` pairs of the one line that starts so."""
    found = [line for line in output.splitlines() if line.startswith(start)]
    assert len(found) == 1, f"{len(found)} lines start with {start!r} in:\n{output}"
    return dict(pair.split(":", 1) for pair in found[0].split() if ":" in pair)


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"(?m)^epoch:\d+ step:\d+ loss:(\S+)", output)]
