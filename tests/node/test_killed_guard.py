"""A guard is killed while its recorder lives: its processes end, and a new guard takes over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs, impatient_program, local_runs

from orchestrator.hosts.session import Refused
from orchestrator.node.host import guard_locks, processes, state

ENDS_WELL_AT_THE_SECOND = """
import os, sys, time
attempt, rank = os.environ["DDP_ORCH_ATTEMPT"], os.environ["RANK"]
os.write(1, b"x" * 300_000 + b"\\nready\\n")
if attempt == "1":
    time.sleep(300)
while not os.path.exists("go"):
    time.sleep(0.01)
print("done")
"""
WAIT = "print('ready', flush=True); import time; time.sleep(300)"
AGAIN = "max_restarts: 1"


def kill_guard(run: Run, node: int = 0) -> None:
    """Kill it, and wait for the next one."""
    guard = run.guard(node)
    processes.send(guard, signal.SIGKILL)
    wait_until(lambda: run.guard(node) != guard, 20.0, "there is a new guard")


def kill_guard_unnoticed(run: Run) -> processes.Process:
    """Kill it while its recorder is stopped. Returns the recorder."""
    recorder = run.recorder()
    assert recorder is not None
    processes.send(recorder, signal.SIGSTOP)
    guard = run.guard()
    processes.send(guard, signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")
    return recorder


def is_connected(process: processes.Process | None) -> bool:
    """Whether it has a TCP connection."""
    if process is None:
        return False
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{row[9]}]" for row in rows if row[3] == "01"}
    with contextlib.suppress(FileNotFoundError):
        return any(os.readlink(fd) in established for fd in Path(f"/proc/{process.pid}/fd").iterdir())
    return False


@pytest.mark.parametrize("torchrun", [False, True])
@pytest.mark.parametrize("node", [0, 1])
def test_the_run_starts_again_and_no_output_is_lost(tmp_path: Path, node: int, torchrun: bool) -> None:
    with local_runs(tmp_path, impatient_program()) as runs:
        run = runs.start(ENDS_WELL_AT_THE_SECOND, nproc=(1, 1), options=AGAIN, torchrun=torchrun)
        for number in (0, 1):
            run.wait_for("ready", f"1.{number}.out", number)
        older = [one for one in run.members() if one not in (run.guard(0), run.guard(1))]
        kill_guard(run, node)
        for number in (0, 1):
            run.wait_for("ready", f"2.{number}.out", number)
        assert not [one for one in older if processes.alive(one)]
        (tmp_path / "go").touch()
        records = run.wait_over()
        assert [record["verdict"]["state"] for record in records] == ["succeeded", "succeeded"]
        assert run.journal(node)[f"1.{node}.out"] == b"x" * 300_000 + b"\nready\n"
        assert run.journal(node)[f"2.{node}.out"] == b"x" * 300_000 + b"\nready\ndone\n"
        assert [failure["attempt"] for failure in records[node]["failures"]] == [1]


def test_a_spare_whose_guard_is_killed_stays_a_spare(tmp_path: Path) -> None:
    with local_runs(tmp_path, impatient_program()) as runs:
        # one restart: both hosts are this machine, so the sweep of one ends the other's ranks too
        run = runs.start(ENDS_WELL_AT_THE_SECOND, nproc=(1, 1), spares=1, options=AGAIN)
        run.wait_for("ready", "1.0.out")
        wait_until(lambda: (run.record("state.json", 1) or {})["committed"], 10.0, "the spare waits")
        kill_guard(run, 1)
        wait_until(lambda: is_connected(run.recorder(1)), 20.0, "its new recorder has a connection to the head")
        (tmp_path / "go").touch()
        records = run.wait_over()
        assert [record["verdict"]["state"] for record in records] == ["succeeded", "succeeded"]
        assert run.record("state.json", 1)["attempt"] == 0  # type: ignore[index]


def test_a_guard_can_be_killed_many_times(tmp_path: Path) -> None:
    with local_runs(tmp_path, impatient_program()) as runs:
        run = runs.start(WAIT, options="max_restarts: 3")
        for attempt in (1, 2, 3):
            run.wait_for("ready", f"{attempt}.0.out")
            kill_guard(run)
        run.wait_for("ready", "4.0.out")
        processes.send(run.guard(), signal.SIGKILL)
        (record,) = run.wait_over()
        assert (record["verdict"]["state"], record["verdict"]["attempt"]) == ("failed", 4)
        assert len(record["failures"]) == 4


def test_the_new_guard_holds_the_name(tmp_path: Path) -> None:
    with local_runs(tmp_path, impatient_program()) as runs:
        run = runs.start(WAIT, options=AGAIN, name="mine")
        run.wait_for("ready", "1.0.out")
        kill_guard(run)
        run.wait_for("ready", "2.0.out")
        with pytest.raises(Refused) as refused:
            runs.prepare(WAIT, name="mine")
        assert refused.value.code == "held"
        assert run.stop(grace=1.0)["remaining"] == []
        (record,) = run.wait_over()
        assert record["verdict"]["state"] == "killed"
        runs.prepare(WAIT, name="mine")


def test_the_new_guard_holds_the_output_folder_on_a_shared_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with local_runs(tmp_path, impatient_program()) as runs:
        run = runs.start(WAIT, options=f"{AGAIN}, output: {disk}", name="mine")
        run.wait_for("ready", "1.0.out")
        kill_guard(run)
        run.wait_for("ready", "2.0.out")
        with (disk / "mine" / state.OUTPUT_LOCK).open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert run.stop(grace=1.0)["remaining"] == []


def test_without_its_locks_no_new_guard_is_started(runs: Runs) -> None:
    run = runs.start(WAIT, options=AGAIN, name="mine")
    run.wait_for("ready", "1.0.out")
    recorder = kill_guard_unnoticed(run)
    taken: list[int] = []
    (lock,) = run.hosts[0].state.glob("*/locks/name-mine")
    guard_locks.lock(str(lock), "the name", taken, 2)
    processes.send(recorder, signal.SIGCONT)
    record = wait_until(lambda: run.record("exit.json"), 20.0, "its recorder leaves a record in its place")
    assert record["verdict"]["first_failure"]["gone"] is True
    assert not state.guarded(str(run.folder()))


def test_a_kill_before_the_recorder_has_noticed_ends_the_run(runs: Runs) -> None:
    run = runs.start(WAIT, options=AGAIN)
    run.wait_for("ready", "1.0.out")
    recorder = kill_guard_unnoticed(run)
    assert run.stop(grace=1.0)["remaining"] == []
    processes.send(recorder, signal.SIGCONT)
    record = wait_until(lambda: run.record("exit.json"), 20.0, "its recorder ends the run")
    assert record["verdict"]["state"] == "killed"
    wait_until(lambda: not processes.alive(recorder), 5.0, "it ends itself")
    assert not run.members()


def test_a_kill_while_the_new_guard_is_started_waits_for_it(runs: Runs) -> None:
    run = runs.start(WAIT, options=AGAIN)
    run.wait_for("ready", "1.0.out")
    guard = run.guard()
    processes.send(guard, signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard) and state.guarded(str(run.folder())), 10.0, "a new one is started")
    assert run.stop(grace=1.0)["remaining"] == []
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "killed"


def test_kills_at_any_moment_end_the_run(tmp_path: Path) -> None:
    with local_runs(tmp_path, impatient_program()) as runs:
        for number in range(6):
            run = runs.start(WAIT, options="max_restarts: 9", name=f"run-{number}")
            run.wait_for("ready", "1.0.out")
            processes.send(run.guard(), signal.SIGKILL)
            delay = threading.Event()
            delay.wait(number * 0.06)  # the moment is what is tested
            assert run.stop(grace=0.5)["remaining"] == []
            record = wait_until(lambda run=run: run.record("exit.json"), 20.0, "the run ends")
            assert record["verdict"]["state"] == "killed"
            wait_until(lambda run=run: not run.members(), 5.0, "nothing is left")


def test_guard_and_recorder_killed_together_leave_a_run_that_is_lost(runs: Runs) -> None:
    run = runs.start(WAIT, options=AGAIN)
    run.wait_for("ready", "1.0.out")
    recorder, guard = run.recorder(), run.guard()
    assert recorder is not None
    processes.send(guard, signal.SIGSTOP)
    processes.send_all([recorder, guard], signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")
    run.hosts[0].session.request("stale", {"ports": []})
    assert not run.members()
    (listed,) = [one for one in run.hosts[0].session.request("list", {})["runs"] if one["run_id"] == run.run_id]
    assert listed["state"] == "lost"
