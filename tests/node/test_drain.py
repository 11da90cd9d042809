"""Hosts that are taken out of a run: gangs of stand-in ranks on hosts of this machine."""

from __future__ import annotations

import re
import signal
import threading

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs

from orchestrator.hosts.session import Refused
from orchestrator.node.guard import requests
from orchestrator.node.host import processes, state

SAVE = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while os.environ["DDP_ORCH_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


def drain(run: Run, node: int, at: int = 0) -> bool:
    asked = {"run_id": run.run_id, "node": node, "by": "ann"}
    return bool(run.hosts[at].session.request("drain", asked)["accepted"])


def begun(runs: Runs, **options: object) -> Run:
    run = runs.start(SAVE, nproc=(1, 1, 1), **options)  # type: ignore[arg-type]
    run.wait_for("rank 1 of", "1.1.out", 1)
    return run


def test_a_drained_host_saves_and_ends_and_the_spare_takes_its_place(runs: Runs) -> None:
    run = begun(runs, spares=1)
    wait_until(lambda: (run.record("state.json", 2) or {})["committed"], 10.0, "the spare knows that the run has begun")
    assert drain(run, 1)
    run.wait_for("rank 1 of 2", "2.1.out", 2, 30.0)
    records = run.wait_over()
    assert [record["verdict"]["state"] for record in records] == ["succeeded", "stopped", "succeeded"]
    assert records[1]["verdict"]["stopped_by"] == "ann"
    assert b"saved" in run.journal(1)["1.1.out"]
    assert re.search(r"draining host-1\b.*\bann\b", run.journal()["1.run.out"].decode())


def said(run: Run) -> str:
    """What the head says."""
    return "".join(data.decode() for stream, data in run.journal().items() if ".run." in stream)


def test_a_host_that_has_left_is_not_called_lost(runs: Runs) -> None:
    run = runs.start(SAVE.replace('os.environ["DDP_ORCH_ATTEMPT"] == "1"', "True"), nproc=(1, 1, 1), spares=1)
    run.wait_for("rank 1 of", "1.1.out", 1)
    assert drain(run, 1)
    run.wait_for("rank 1 of 2", "2.1.out", 2, 30.0)
    wait_until(lambda: re.search("host-1 (has left|refuses)", said(run)), 20.0, "the head knows that it has gone")
    assert "refuses" not in said(run)
    run.stop()
    run.wait_over()


def test_a_request_outlives_the_guard_that_took_it(runs: Runs) -> None:
    run = begun(runs, spares=1, options="max_restarts: 1")
    recorder, guard = run.recorder(), run.guard()
    assert recorder is not None
    processes.send(recorder, signal.SIGSTOP)
    asked = {"do": "drain", "id": "one", "node": 1, "by": "ann"}
    assert requests.ask(str(run.folder()), asked) == {"answer": None}
    processes.send(guard, signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")
    processes.send(recorder, signal.SIGCONT)
    records = run.wait_over()
    assert [record["verdict"]["state"] for record in records] == ["succeeded", "stopped", "succeeded"]


def test_who_asks_while_the_guard_is_replaced_is_answered_by_the_next_one(runs: Runs) -> None:
    run = begun(runs, spares=1, options="max_restarts: 1")
    recorder, guard = run.recorder(), run.guard()
    assert recorder is not None
    processes.send(recorder, signal.SIGSTOP)
    processes.send(guard, signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")
    accepted: list[bool] = []
    asking = threading.Thread(target=lambda: accepted.append(drain(run, 1)))
    asking.start()
    processes.send(recorder, signal.SIGCONT)
    asking.join(20.0)
    assert accepted == [True]
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded", "stopped", "succeeded"]


def test_a_host_that_the_run_needs_is_not_drained(runs: Runs) -> None:
    run = begun(runs)
    assert not drain(run, 1) and not drain(run, 0) and not drain(run, 9)
    assert state.guarded(str(run.folder(1)))
    run.stop(grace=1.0)
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["killed"] * 3


def test_only_the_head_is_asked_to_drain(runs: Runs) -> None:
    run = begun(runs)
    with pytest.raises(Refused):
        drain(run, 1, at=2)
    with pytest.raises(Refused):
        run.hosts[0].session.request("drain", {"run_id": run.run_id, "node": -1, "by": "ann"})
    run.stop(grace=1.0)
    run.wait_over()
