"""Signals to the ranks of a run, and the line that says that a snapshot is saved."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from local_runs import Run, Runs

from orchestrator.hosts.session import Refused
from orchestrator.node.host import processes
from orchestrator.node.roles.tie import STOPPED_BY

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
    assert 0.0 < run.record("snapshot.json")["seconds"] < 60.0  # type: ignore[index]
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


@pytest.mark.parametrize("number", ["USR1", [], 4711, -1, 1 << 70])
def test_a_malformed_signal_does_no_harm(runs: Runs, number: Any) -> None:
    run = runs.start(COUNTS)
    run.wait_for("ready", "1.0.out")
    try:
        assert ask(run, number)["signaled"] == []
    except Refused:
        pass
    assert ask(run, signal.SIGUSR2)["signaled"] == [0]
    run.stop(grace=0.0)


# --- to save and to stop

SAVES = """
import os, signal, sys, time
wanted = []
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
signal.signal(signal.SIGTERM, lambda *_: (print("told to stop", flush=True), sys.exit(0)))
print("ready", flush=True)
while True:
    time.sleep(0.01)
    if wanted:
        wanted.clear()
        print("saved step:7", flush=True)
"""


def test_a_run_saves_a_snapshot_and_stops_before_its_walltime(runs: Runs) -> None:
    run = runs.start(SAVES, nproc=(1, 1), grace=1.0, options="walltime: 6s, max_restarts: 3")
    verdicts = [record["verdict"] for record in run.wait_over()]
    assert [(verdict["state"], verdict["stopped_by"]) for verdict in verdicts] == [("stopped", "run.walltime")] * 2
    assert run.record("snapshot.json")["seconds"] < 6.0  # type: ignore[index]
    for node in (0, 1):
        assert run.journal(node)[f"1.{node}.out"] == b"ready\nsaved step:7\ntold to stop\n"


SAVES_AT_THE_LAST_RANK = SAVES.replace('print("saved', 'os.environ["RANK"] == "1" and print("saved')


def test_with_c10d_the_line_of_a_snapshot_may_come_from_any_host(runs: Runs) -> None:
    """torchrun may place rank 0 on another host than the head."""
    options = "rdzv: {backend: c10d}, walltime: 120s, max_restarts: 3"
    run = runs.start(SAVES_AT_THE_LAST_RANK, nproc=(1, 1), grace=1.0, options=options)
    for node in (0, 1):
        run.wait_for("ready", f"1.{node}.out", node)
    run.hosts[0].session.request("finish", {"run_id": run.run_id, "by": "the test"})
    verdicts = [record["verdict"] for record in run.wait_over(20.0)]  # without that line, it would take a minute
    assert [(verdict["state"], verdict["stopped_by"]) for verdict in verdicts] == [("stopped", "the test")] * 2
    assert run.record("snapshot.json")["seconds"] < 20.0  # type: ignore[index]


def test_without_c10d_the_line_of_a_snapshot_comes_from_the_head(runs: Runs) -> None:
    """The shard of another host may be saved before rank 0 has saved its own."""
    run = runs.start(SAVES_AT_THE_LAST_RANK, nproc=(1, 1), grace=1.0, options="walltime: 8s")
    run.wait_for("saved step:7", "1.1.out", 1)
    run.wait_over()
    assert run.record("snapshot.json")["seconds"] is None  # type: ignore[index]


LOADS_MEANWHILE = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
time.sleep(1.5)
"""


@pytest.mark.parametrize("torchrun", [False, True])
def test_ranks_that_get_their_handler_after_the_request_save_all_the_same(
    runs: Runs, tmp_path: Path, torchrun: bool
) -> None:
    run = runs.start(LOADS_MEANWHILE + SAVES, nproc=(1, 1), grace=1.0, torchrun=torchrun, options="walltime: 20s")
    run.wait_for("asking the ranks for a snapshot", "1.run.out")
    assert not any(b"ready" in text for text in run.journal().values())
    (tmp_path / "go").touch()
    verdicts = [record["verdict"] for record in run.wait_over()]
    assert [(verdict["state"], verdict["stopped_by"]) for verdict in verdicts] == [("stopped", "run.walltime")] * 2
    for node in (0, 1):
        assert b"saved step:7" in run.journal(node)[f"1.{node}.out"]


def test_a_script_without_a_handler_runs_until_its_walltime(runs: Runs) -> None:
    wait = "import time; print('ready', flush=True); time.sleep(300)"
    run = runs.start(wait, grace=1.0, options="walltime: 4s")
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "stopped"
    assert record["outcome"]["ended"]


@pytest.mark.parametrize("node", [0, 1])
def test_whoever_asks_for_it_on_any_host_a_run_saves_a_snapshot_and_stops(runs: Runs, node: int) -> None:
    run = runs.start(SAVES, nproc=(1, 1), grace=1.0)
    for rank in (0, 1):
        run.wait_for("ready", f"1.{rank}.out", rank)
    assert run.hosts[node].session.request("finish", {"run_id": run.run_id, "by": "ann"})["can_save"] is True
    verdicts = [record["verdict"] for record in run.wait_over()]
    assert [(verdict["state"], verdict["stopped_by"]) for verdict in verdicts] == [("stopped", "ann")] * 2
    for rank in (0, 1):
        assert b"saved step:7\n" in run.journal(rank)[f"1.{rank}.out"]
    assert run.listed()["state"] == "stopped"


def test_a_run_of_a_job_continues_while_any_host_is_asked_to_hold_it_and_ends_soon_after(runs: Runs) -> None:
    run = runs.start("import time; print('ready', flush=True); time.sleep(300)", nproc=(1, 1), grace=1.0, tie=3.0)
    held_until = time.monotonic() + 6.0
    while time.monotonic() < held_until:
        run.hosts[1].session.request("hold", {"run_id": run.run_id})
        time.sleep(0.2)
    assert run.listed()["state"] == "running"
    verdicts = [record["verdict"] for record in run.wait_over()]
    assert [(verdict["state"], verdict["stopped_by"]) for verdict in verdicts] == [("stopped", STOPPED_BY)] * 2


def test_a_recorder_that_is_killed_meanwhile_does_not_keep_a_run_from_stopping(runs: Runs) -> None:
    run = runs.start(COUNTS.replace('print("saved', 'print("not saved'), grace=1.0, options="walltime: 12s")
    run.wait_for("got", "1.0.out")
    recorder = run.recorder()
    assert recorder is not None
    processes.send(recorder, signal.SIGKILL)
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "stopped"


def test_a_guard_that_is_killed_meanwhile_does_not_keep_a_run_from_stopping(runs: Runs) -> None:
    run = runs.start(SAVES.replace('print("saved', 'print("not yet'), grace=1.0, options="max_restarts: 1")
    run.wait_for("ready", "1.0.out")
    run.hosts[0].session.request("finish", {"run_id": run.run_id, "by": "ann"})
    run.wait_for("not yet", "1.0.out")
    processes.send(run.guard(), signal.SIGKILL)
    (record,) = run.wait_over()
    assert (record["verdict"]["state"], record["verdict"]["stopped_by"]) == ("stopped", "ann")
