"""torchrun may have reaped a rank before the guard has looked at it, on a busy host."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from lab.waiting import wait_until
from local_runs import Run, Runs

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


def test_a_rank_that_torchrun_stopped_is_not_the_first_failure(runs: Runs, tmp_path: Path) -> None:
    run = runs.start(FAILS, str(tmp_path), nproc=(2,), torchrun=True)
    wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), 20, "both ranks are there")
    failing, agent = map(int, (tmp_path / "0").read_text().split())
    guard = run.guard()
    processes.send(guard, signal.SIGSTOP)
    (tmp_path / "fail").touch()
    wait_until(lambda: not os.path.exists(f"/proc/{failing}"), 20, "torchrun has reaped the rank that failed")
    wait_until((tmp_path / "asked").exists, 20, "and stops the other one")
    processes.send(guard, signal.SIGCONT)
    os.kill(agent, signal.SIGSTOP)  # it shall not reap the other one as well
    (tmp_path / "end").touch()
    try:
        wait_until(lambda: "first failure" in run_log(run), 20, "a failure is known")
    finally:
        os.kill(agent, signal.SIGCONT)
    (record,) = run.wait_over()
    first = record["verdict"]["first_failure"]
    assert (first["rank"], first["exit_code"], first["signal"]) == (0, None, None)
    assert first["said"] == "KeyError: 'the_missing_column'"


def run_log(run: Run) -> str:
    return "".join(text.decode() for stream, text in run.journal().items() if ".run." in stream)
