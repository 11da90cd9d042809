"""A host takes part in a run again after its guard and recorder have gone, as they do when the host is restarted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs

from orchestrator.hosts.session import Refused, Session
from orchestrator.node.host import processes, state

WAIT = "import time; print('here', flush=True); time.sleep(300)"


def rejoin(
    run: Run, node: int = 0, session: Session | None = None, notify: Mapping[str, str] = MappingProxyType({})
) -> None:
    private = {"secrets": {}, "key": run.key.hex(), "notify": dict(notify)}
    (session or run.hosts[node].session).request("rejoin", {"run_id": run.run_id, "private": private})


def refusal(run: Run, node: int = 0) -> str:
    with pytest.raises(Refused) as refused:
        rejoin(run, node)
    return refused.value.code


def lose(run: Run, node: int = 0) -> None:
    """End the guard, the recorder and the ranks of a node at once, as a power failure does."""
    guard = run.guard(node)
    below = processes.descendants(guard.pid)
    processes.send(guard, signal.SIGSTOP)
    processes.send_all([*below, guard], signal.SIGKILL)
    wait_until(lambda: not any(map(processes.alive, [guard, *below])), 10.0, "all processes of the node are gone")


STOP_WINDOW = 20.0  # s, far less than until a guard is killed that does not obey


def test_a_node_whose_processes_are_gone_gets_a_guard_that_can_be_stopped(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1), options="max_restarts: 1")
    run.wait_for("here", "1.0.out")
    lose(run)
    assert not state.guarded(str(run.folder()))
    rejoin(run)
    assert state.guarded(str(run.folder()))
    assert run.record("state.json")["start"] is not None  # type: ignore[index]
    run.stop(1)
    assert run.stop(0)["remaining"] == []
    run.wait_over()


def test_a_node_whose_head_is_gone_waits_for_it(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1), options="max_restarts: 1, lease: 2")
    run.wait_for("here", "1.1.out", 1)
    lose(run)
    wait_until(lambda: run.listed(1)["state"] == "waiting", 20.0, "the other node waits")
    assert run.listed(1)["waits"]["hosts"] == ["host-0"]
    rejoin(run)
    wait_until(lambda: run.listed(1)["state"] == "running", 20.0, "the next attempt runs there")
    run.stop(1)
    run.stop(0)


def test_a_node_that_is_back_writes_its_lines_to_the_attempt_that_it_was_in(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1), options="max_restarts: 2, lease: 2, rejoin_timeout: 60")
    run.wait_for("here", "1.1.out", 1)
    wait_until(lambda: (run.record("procs.json", 1) or {}).get("ranks"), 20.0, "the guard has recorded its rank")
    record = run.record("procs.json", 1)
    assert record is not None
    os.kill(record["ranks"][0][0], signal.SIGKILL)
    run.wait_for("here", "2.1.out", 1)
    lose(run, 1)
    lose(run)
    rejoin(run, 1)
    wait_until(lambda: any(b"no message" in text for text in run.journal(1).values()), 20.0, "it has a line to say")
    assert {stream for stream, text in run.journal(1).items() if b"no message" in text} == {"2.run.out"}
    run.stop(1)


@pytest.mark.parametrize("stopped", [False, True], ids=["alone", "stopped"])
def test_a_node_that_is_back_does_not_wait_for_ever_for_a_head_that_is_gone(runs: Runs, stopped: bool) -> None:
    """Such as of a run that was stopped while this host was off."""
    run = runs.start(WAIT, nproc=(1, 1), options=f"max_restarts: 1, lease: 2, rejoin_timeout: {600 if stopped else 3}")
    run.wait_for("here", "1.1.out", 1)
    lose(run, 1)
    lose(run)
    rejoin(run, 1)
    if stopped:
        assert run.stop(1)["remaining"] == []
    wait_until(lambda: not state.guarded(str(run.folder(1))), 20.0, "the node has given up")
    assert run.listed(1)["verdict"]["state"] == ("killed" if stopped else "lost")


def test_a_spare_that_is_back_can_be_stopped_without_a_head(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1), spares=1, options="max_restarts: 1, lease: 2")
    run.wait_for("here", "1.0.out")
    wait_until(lambda: (run.record("state.json", 1) or {})["committed"], 10.0, "the spare knows that the run has begun")
    lose(run, 1)
    lose(run)
    rejoin(run, 1)
    began = time.monotonic()
    assert run.stop(1)["remaining"] == [] and time.monotonic() - began < STOP_WINDOW
    assert run.listed(1)["verdict"]["state"] == "killed"
    assert run.recorder(1) is None


def test_a_node_with_a_guard_gets_no_second_one(runs: Runs) -> None:
    run = runs.start(WAIT)
    run.wait_for("here", "1.0.out")
    guard = run.guard()
    assert refusal(run) == "guarded"
    run.stop()
    assert refusal(run) == "over" and not processes.alive(guard)


def test_a_run_that_is_not_here_is_refused(runs: Runs) -> None:
    (host,) = runs.hosts(1)
    assert refusal(Run("20260101-000000-abcd", [host])) == "no-such-run"


def test_of_several_who_start_a_guard_one_succeeds(runs: Runs) -> None:
    run = runs.start(WAIT, options="max_restarts: 1")
    run.wait_for("here", "1.0.out")
    lose(run)
    codes: list[str] = []

    def try_it(session: Session) -> None:
        try:
            rejoin(run, session=session)
            codes.append("")
        except Refused as error:
            codes.append(error.code)

    sessions = [run.hosts[0].connect() for _ in range(4)]
    threads = [threading.Thread(target=try_it, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    for session in sessions:
        session.close()
    assert len(codes) == 4 and codes.count("") == 1 and set(codes) <= {"", "guarded", "held"}
    guards = [pid for pid in processes.pids() if f"guard {run.run_id}" in processes.command(pid)]
    assert len(guards) == 1
    run.stop()


def test_the_clock_of_a_run_is_not_set_back(runs: Runs) -> None:
    run = runs.start(WAIT, options="max_restarts: 1")
    run.wait_for("here", "1.0.out")
    lose(run)
    later = time.time() + 1000.0
    with (run.folder() / "gang.jsonl").open("a") as log:
        log.write(json.dumps({"event": "Tick", "fields": {"at": later}}) + "\n{torn")
    rejoin(run)
    spec = run.record("spec.json")
    assert spec is not None and spec["epoch"] + time.monotonic() >= later
    run.stop()


def test_a_name_that_another_run_has_taken_is_not_taken_back(runs: Runs) -> None:
    run = runs.start(WAIT, name="mine", options="max_restarts: 1")
    run.wait_for("here", "1.0.out")
    lose(run)
    other = runs.start(WAIT, name="mine")
    assert refusal(run) == "held" and not state.guarded(str(run.folder()))
    other.stop()


SAVES = """
import os, signal, time
def save(*_):
    open("saved", "w").close()
    os._exit(1)
signal.signal(signal.SIGTERM, save)
print('here', flush=True)
time.sleep(300)
"""


@pytest.fixture
def shutting_down(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists while the system manager says that the host shuts down. It is a stand-in for systemd, which
    is process 1 of no host here; what it answers is that of systemd 252 (systemctl(1), is-system-running).
    """
    folder = tmp_path_factory.mktemp("bin")
    program, marker = folder / "systemctl", folder / "shutting-down"
    program.write_text(f"#!/bin/sh\n[ -e {marker} ] && {{ echo stopping; exit 1; }}\necho running\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return marker


def test_a_host_that_shuts_down_does_not_stop_the_run_of_the_others(
    shutting_down: Path, runs: Runs, tmp_path: Path
) -> None:
    run = runs.start(SAVES, nproc=(1, 1), options="max_restarts: 1, lease: 2")
    run.wait_for("here", "1.1.out", 1)
    below = processes.descendants(run.guard(1).pid)
    shutting_down.touch()
    processes.send_all([run.guard(1), *below], signal.SIGTERM)  # as systemd does to all processes of a login
    wait_until(lambda: not state.guarded(str(run.folder(1))), 20.0, "the guard has ended")
    assert not any(map(processes.alive, below))
    wait_until(lambda: run.listed(0)["state"] == "waiting", 20.0, "the other host waits for it")
    assert run.listed(0)["waits"]["hosts"] == ["host-1"] and run.listed(0)["waits"]["until"] > time.time()
    shutting_down.unlink()
    rejoin(run, 1)
    run.wait_for("here", "2.1.out", 1)
    run.stop(0)
    run.stop(1)


def test_sigterm_from_a_person_stops_the_run(shutting_down: Path, runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1), options="max_restarts: 1")
    run.wait_for("here", "1.1.out", 1)
    processes.send(run.guard(1), signal.SIGTERM)
    run.wait_over()
