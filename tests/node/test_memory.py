"""The folder of a run on /dev/shm ($DDP_ORCH_MEMORY_DIR): it lives from the start of the run to its end."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs, impatient_program, local_runs

from orchestrator.hosts.session import Refused
from orchestrator.node.host import memory_folder, processes

LIMIT = "memory_limit: 8MiB"
# A rank prints what it finds, saves what tells its attempt, and waits to be killed. The last attempt ends.
SCRIPT = """
import os, sys, time
memory, attempt = os.environ["DDP_ORCH_MEMORY_DIR"], int(os.environ["DDP_ORCH_ATTEMPT"])
print("has", *sorted(os.listdir(memory)), flush=True)
if attempt == int(sys.argv[1]):
    sys.exit()
os.makedirs(f"{memory}/new")
open(f"{memory}/new/part", "w").write("x")
os.rename(f"{memory}/new", f"{memory}/step-{attempt:06}")
print("saved", flush=True)
time.sleep(300)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with local_runs(tmp_path, impatient_program()) as found:
        yield found


def folder(run: Run, node: int = 0) -> Path:
    return Path(memory_folder.path({"run_id": run.run_id, "node": node}))


def has(run: Run, attempt: int, rank: int = 0, node: int = 0) -> list[str]:
    """What a rank found at the beginning of an attempt."""
    return run.journal(node)[f"{attempt}.{rank}.out"].decode().split("\n")[0].split()[1:]


def kill_rank(run: Run, rank: int) -> None:
    for process in run.members():
        if f"\0RANK={rank}\0".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
            processes.send(process, signal.SIGKILL)


def test_it_is_private_survives_attempts_and_is_removed_at_the_end(runs: Runs) -> None:
    run = runs.start(SCRIPT, "2", options=f"max_restarts: 1, {LIMIT}")
    run.wait_for("saved", "1.0.out")
    status = folder(run).stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o700)
    kill_rank(run, 0)
    assert run.wait_over()[0]["verdict"]["state"] == "succeeded"
    assert (has(run, 1), has(run, 2)) == ([], ["step-000001"])
    assert not folder(run).exists()


def test_without_a_limit_there_is_none(runs: Runs) -> None:
    run = runs.start("import os; print(os.environ.get('DDP_ORCH_MEMORY_DIR'))")
    run.wait_over()
    assert run.journal()["1.0.out"] == b"None\n" and not folder(run).exists()


def test_a_killed_guard_costs_no_snapshot(runs: Runs) -> None:
    run = runs.start(SCRIPT, "2", options=f"max_restarts: 1, {LIMIT}")
    run.wait_for("saved", "1.0.out")
    processes.send(run.guard(), signal.SIGKILL)
    run.wait_over()
    assert has(run, 2) == ["step-000001"]
    assert not folder(run).exists()


@pytest.mark.parametrize("how", ["stop", "stale"])
def test_it_is_removed_where_guard_and_recorder_were_killed(runs: Runs, how: str) -> None:
    run = runs.start(SCRIPT, "2", options=LIMIT)
    run.wait_for("saved", "1.0.out")
    guard = run.guard()
    below = processes.descendants(guard.pid)
    processes.send(guard, signal.SIGSTOP)  # so that it starts nothing again
    processes.send_all(below | {guard}, signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")
    assert folder(run).exists()
    if how == "stop":
        run.stop(grace=0.0)
    else:
        assert str(folder(run)) in run.hosts[0].session.request("stale", {"ports": []})["memory_freed"]
    assert not folder(run).exists()


def test_it_is_removed_when_a_run_is_stopped_and_when_it_was_only_prepared(runs: Runs) -> None:
    run, _ = runs.prepare(SCRIPT, "2", options=LIMIT)
    assert folder(run).exists()
    run.stop(0)
    assert not folder(run).exists()


def test_a_folder_without_a_run_is_stale_when_no_guard_has_locked_it(runs: Runs) -> None:
    run = runs.start(SCRIPT, "2", options=LIMIT)
    run.wait_for("saved", "1.0.out")
    stray = Path(memory_folder.path({"run_id": "20260101-000000-0000", "node": 0}))
    stray.mkdir(0o700)
    (stray / "part").write_text("x")
    for path in (stray, folder(run)):
        os.utime(path, (1, 1))
    freed = runs.hosts(1)[0].session.request("stale", {"ports": []})["memory_freed"]
    assert str(stray) in freed and not stray.exists()
    assert folder(run).exists()


def test_more_than_the_free_memory_is_refused(runs: Runs) -> None:
    with pytest.raises(Refused) as refusal:
        runs.prepare(SCRIPT, "2", options="memory_limit: 900TiB")
    assert refusal.value.code == "memory-dir-unusable"
    assert "run.memory_limit" in str(refusal.value)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_folder, "SHM", str(tmp_path))
    spec = {"run_id": "20260101-000000-0000", "node": 0, "memory_limit": 1}
    Path(memory_folder.path(spec)).mkdir(0o755)
    with pytest.raises(memory_folder.Unusable, match="is not private"):
        memory_folder.make(spec, [])
