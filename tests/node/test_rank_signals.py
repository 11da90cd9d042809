"""Signals to the ranks of a run, and the line that says that a snapshot is saved."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from local_runs import Run, Runs

from orchestrator.hosts.session import Refused

COUNTS = """
import os, signal, sys, time
def on_signal(number, frame):
    print("got", number, flush=True)
    if number == signal.SIGUSR1:
        print("savedx is none", flush=True)
        time.sleep(0.3)
        print("saved step:7", file=sys.stderr, flush=True)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, on_signal)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
DEAF_AT_RANK_1 = "import os\nif os.environ['RANK'] != '1':\n" + "\n".join(f"    {line}" for line in COUNTS.splitlines())
DEAF_AT_RANK_1 += "\nelse:\n    print('ready', flush=True)\n    import time; time.sleep(300)\n"


def ask(run: Run, number: int | None, node: int = 0, **more: Any) -> dict[str, Any]:
    asked = {"run_id": run.run_id, "signal": number, "ranks": None, "only_if_caught": False, "dry": False, **more}
    return dict(run.hosts[node].session.request("signal", asked))


def saved(run: Run, offsets: dict[str, int], seconds: float = 10.0) -> dict[str, Any]:
    asked = {"run_id": run.run_id, "offsets": offsets, "seconds": seconds}
    return dict(run.hosts[0].session.request("saved", asked))


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_signal_reaches_the_ranks_that_were_chosen(runs: Runs, torchrun: bool) -> None:
    run = runs.start(COUNTS, nproc=(2, 2), torchrun=torchrun)
    for rank, node in ((0, 0), (1, 0), (2, 1), (3, 1)):
        run.wait_for("ready", f"1.{rank}.out", node)
    assert ask(run, signal.SIGUSR2, ranks=[1, 2])["signaled"] == [1]
    assert ask(run, signal.SIGUSR2, 1, ranks=[1, 2])["signaled"] == [2]
    for rank, node in ((1, 0), (2, 1)):
        run.wait_for(f"got {int(signal.SIGUSR2)}\n", f"1.{rank}.out", node)
    assert run.journal()["1.0.out"] == b"ready\n"
    run.stop(grace=0.0)


def test_a_snapshot_is_not_asked_of_ranks_that_the_signal_would_end(runs: Runs) -> None:
    run = runs.start(DEAF_AT_RANK_1, nproc=(2,))
    for rank in (0, 1):
        run.wait_for("ready", f"1.{rank}.out")
    for dry in (True, False):
        answer = ask(run, None, only_if_caught=True, dry=dry)
        assert (answer["ranks"], answer["signaled"], answer["uncaught"]) == ([0, 1], [], [1])
    assert run.journal()["1.0.out"] == b"ready\n"
    run.stop(grace=0.0)


def test_the_line_of_a_snapshot_is_waited_for(runs: Runs) -> None:
    run = runs.start(COUNTS, options="snapshot_signal: USR1")
    run.wait_for("ready", "1.0.out")
    answer = ask(run, None, only_if_caught=True)
    assert (answer["signal"], answer["signaled"]) == (signal.SIGUSR1, [0])
    line = saved(run, answer["offsets"])
    assert (line["line"], line["rank"]) == ("saved step:7", 0)
    later = ask(run, signal.SIGUSR2)
    assert later["offsets"]["1.0.err"] == len("saved step:7\n")
    nothing = saved(run, later["offsets"], 0.2)
    assert (nothing["line"], nothing["offsets"]["1.0.err"]) == (None, len("saved step:7\n"))
    run.stop(grace=0.0)


def test_a_rank_that_has_ended_is_not_signaled(runs: Runs) -> None:
    run = runs.start(
        "import os; os.path.exists('go') or __import__('time').sleep(300 * int(os.environ['RANK']))", nproc=(2,)
    )
    gone = threading.Event()
    for _ in range(500):
        if (answer := ask(run, signal.SIGCONT))["signaled"] == [1]:
            break
        gone.wait(0.02)
    assert answer["ranks"] == [1]
    run.stop(grace=0.0)
    with pytest.raises(Refused) as refused:
        ask(run, signal.SIGCONT)
    assert refused.value.code == "no-guard"


@pytest.mark.parametrize("number", ["USR1", [], 4711, -1])
def test_a_malformed_signal_does_no_harm(runs: Runs, number: Any) -> None:
    run = runs.start(COUNTS)
    run.wait_for("ready", "1.0.out")
    try:
        assert ask(run, number)["signaled"] == []
    except Refused:
        pass
    assert os.path.exists(f"/proc/{run.guard().pid}")
    run.stop(grace=0.0)
