"""Hosts that are lost and replaced, and ranks that hang: gangs of stand-in ranks on hosts of this machine."""

from __future__ import annotations

import os
import re
import signal

from lab.waiting import wait_until
from local_runs import Run, Runs

from orchestrator.node.host import processes, state

COUNT = """
import os, sys, time
names = "RANK", "GROUP_RANK", "WORLD_SIZE", "DDP_ORCH_ATTEMPT"
print(*(os.environ[name] for name in names), flush=True)
while os.environ["DDP_ORCH_ATTEMPT"] != sys.argv[1]:
    print("working", flush=True)
    time.sleep(0.2)
"""


def pull_the_plug(run: Run, node: int) -> None:
    """As a power cut: nobody of this host says goodbye."""
    guard = run.guard(node)
    below = processes.descendants(guard.pid)
    processes.send(guard, signal.SIGSTOP)
    for one in below | {guard}:
        processes.send(one, signal.SIGSTOP)
    processes.send_all(below | {guard}, signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")


def said(run: Run, attempt: int, rank: int, node: int) -> str:
    return run.journal(node).get(f"{attempt}.{rank}.out", b"").decode()


def test_a_lost_host_is_replaced_by_the_spare_and_the_ranks_of_the_others_stay(runs: Runs) -> None:
    run = runs.start(COUNT, "2", nproc=(1, 2, 1, 2), spares=1)
    run.wait_for("working", "1.3.out", 2)
    assert (run.record("state.json", 3) or {})["committed"]
    pull_the_plug(run, 1)
    run.wait_for("2 1 4 2", "2.2.out", 3, 40.0)
    wait_until(lambda: (run.record("exit.json") or {}).get("verdict"), 30.0, "the run is over")
    verdict = (run.record("exit.json") or {})["verdict"]
    assert (verdict["state"], verdict["attempt"]) == ("succeeded", 2)
    assert said(run, 2, 3, 2).startswith("3 2 4 2")
    own = run.journal()["1.run.out"].decode()
    assert re.search(r"first failure: host-1: .*\blost\b", own)
    assert re.search(r"\brestart\b.*\bhost-3\b.*\bhost-1\b", own)


def test_without_a_spare_the_run_goes_on_with_fewer_hosts(runs: Runs) -> None:
    run = runs.start(COUNT, "2", nproc=(1, 2, 1), options="nnodes: '2:3'")
    run.wait_for("working", "1.3.out", 2)
    pull_the_plug(run, 1)
    run.wait_for("1 1 2 2", "2.1.out", 2, 40.0)
    wait_until(lambda: (run.record("exit.json") or {}).get("verdict"), 30.0, "the run is over")
    assert (run.record("exit.json") or {})["verdict"]["state"] == "succeeded"
    assert re.search(r"\brestart\b.*\b2 hosts\b.*\bhost-1\b", run.journal()["1.run.out"].decode())


def test_a_spare_whose_head_is_lost_ends_with_the_others(runs: Runs) -> None:
    run = runs.start(COUNT, "2", nproc=(1, 1, 1), spares=1)
    run.wait_for("working", "1.1.out", 1)
    wait_until(lambda: (run.record("state.json", 2) or {})["committed"], 10.0, "the spare knows that the run has begun")
    pull_the_plug(run, 0)
    for node in (1, 2):
        wait_until(lambda node=node: run.record("exit.json", node), 30.0, f"node {node} has ended")
        record = run.record("exit.json", node) or {}
        assert record["verdict"]["state"] == "lost"
        assert record["verdict"]["first_failure"]["host"] == "host-0"
    wait_until(lambda: not run.members(), 10.0, "nothing is left")


def test_a_spare_outlives_the_controller_that_prepared_it(runs: Runs) -> None:
    run = runs.start(COUNT, "2", nproc=(1, 1), spares=1)
    run.wait_for("working", "1.0.out")
    wait_until(lambda: (run.record("state.json", 1) or {})["committed"], 10.0, "the spare knows that the run has begun")
    for host in run.hosts:
        host.session.close()
    assert still_guarded(run, 1)
    os.kill(run.guard(0).pid, signal.SIGTERM)
    records = run.wait_over()
    assert [record["verdict"]["state"] for record in records] == ["killed", "killed"]


def still_guarded(run: Run, node: int) -> bool:
    return state.guarded(str(run.folder(node)))


HANG = """
import os, sys, threading, time
def waits_for_ever():
    threading.Event().wait()
print("38%|...", end="", file=sys.stderr, flush=True)
print("begun", flush=True)
if os.environ["DDP_ORCH_ATTEMPT"] == "1":
    waits_for_ever()
"""


def test_ranks_that_hang_show_their_stacks_and_are_started_again(runs: Runs) -> None:
    run = runs.start(HANG, nproc=(1, 1), options="stall_timeout: 3, max_restarts: 1")
    records = run.wait_over(60.0)
    assert [record["verdict"]["state"] for record in records] == ["succeeded", "succeeded"]
    for node in (0, 1):
        shown = run.journal(node)[f"1.{node}.err"].decode()
        assert "in waits_for_ever" in shown
        assert re.search("^ddp-orch: rank", shown, re.MULTILINE), "it does not continue the open line"
    assert re.search(r"all hosts: .*\b[3-9] s\b", run.journal()["1.run.out"].decode())


CHILD_HANGS = """
import subprocess, sys
child = "import threading\\ndef waits_in_a_child(): threading.Event().wait()\\nprint('begun')\\nwaits_in_a_child()"
def waits_for_its_child():
    subprocess.call([sys.executable, "-c", child])
waits_for_its_child()
"""


def test_the_child_of_a_rank_that_hangs_shows_its_stacks_too_and_is_not_buffered(runs: Runs) -> None:
    run = runs.start(CHILD_HANGS, nproc=(2,), options="stall_timeout: 3")
    for rank in (0, 1):
        run.wait_for("begun", f"1.{rank}.out")
    run.wait_over(60.0)
    for rank in (0, 1):
        shown = run.journal()[f"1.{rank}.err"].decode()
        assert shown.index("in waits_in_a_child") < shown.index("in waits_for_its_child")


def test_a_rank_that_a_signal_has_stopped_is_named_as_the_reason(runs: Runs) -> None:
    run = runs.start(HANG, nproc=(1, 2), options="stall_timeout: 8")
    run.wait_for("begun", "1.2.out", 1)
    (pid,) = [one.pid for one in run.members() if processes.environment(one.pid).get("RANK") == "2"]
    os.kill(pid, signal.SIGSTOP)
    records = run.wait_over(60.0)
    failure = records[0]["verdict"]["first_failure"]
    assert (records[0]["verdict"]["state"], failure["host"], failure["rank"]) == ("failed", "host-1", 2)
    assert "SIGSTOP" in failure["what"]
