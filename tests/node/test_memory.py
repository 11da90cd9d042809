"""The folder of a run on /dev/shm ($DDP_ORCH_MEMORY_DIR): it lives from the start of the run to its end."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs, impatient_program, local_runs

from orchestrator.hosts.session import Refused
from orchestrator.node.host import memory_folder, processes, state

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


@pytest.mark.parametrize("operation", ["stale", "stop"])
def test_a_folder_that_is_locked_for_a_guard_to_come_is_left(runs: Runs, operation: str) -> None:
    """As in `prepare`, from the moment that the run is recorded until its guard has run.lock."""
    run, _ = runs.prepare(SCRIPT, "2", options=LIMIT)
    guard = run.guard()
    spec = run.record("spec.json") or {}
    processes.send(guard, signal.SIGSTOP)
    recorder = run.recorder()
    assert recorder is not None
    processes.send_all([recorder, guard], signal.SIGKILL)
    wait_until(lambda: not state.guarded(str(run.folder())), 5.0, "the lock of the run is free")
    taken: list[int] = []
    memory_folder.make(spec, taken)
    if operation == "stale":
        run.hosts[0].session.request("stale", {"ports": []})
    else:
        run.stop(0)
    assert folder(run).exists()
    for handle in taken:
        os.close(handle)
    assert str(folder(run)) in run.hosts[0].session.request("stale", {"ports": []})["memory_freed"]
    assert not folder(run).exists()


def test_more_than_the_free_memory_is_refused(runs: Runs) -> None:
    with pytest.raises(Refused) as refusal:
        runs.prepare(SCRIPT, "2", options="memory_limit: 900TiB")
    assert refusal.value.code == "memory-dir-unusable"
    assert "run.memory_limit" in str(refusal.value)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_folder, "SHM", str(tmp_path))
    spec = {"run_id": "20260101-000000-0000", "node": 0, "nodes": [{}], "memory_limit": 1}
    Path(memory_folder.path(spec)).mkdir(0o755)
    with pytest.raises(memory_folder.Unusable, match="is not private"):
        memory_folder.make(spec, [])


# --- between hosts

# A rank prints what it finds, saves as the first argument says, and waits to be killed. The last attempt ends.
AMONG_HOSTS = """
import glob, os, sys, time
memory, rank, attempt = os.environ["DDP_ORCH_MEMORY_DIR"], os.environ["RANK"], int(os.environ["DDP_ORCH_ATTEMPT"])
print("has", *(path[len(memory) + 1 :] for path in sorted(glob.glob(memory + "/*/*"))), flush=True)
if attempt == int(sys.argv[2]):
    sys.exit()
def save(name):
    os.makedirs(f"{memory}/.new")
    open(f"{memory}/.new/{rank}.pt", "w").write(name + rank)
    os.rename(f"{memory}/.new", f"{memory}/{name}")
exec(sys.argv[1])
print("saved", flush=True)
time.sleep(300)
"""


def copies(run: Run, node: int) -> set[str]:
    root = folder(run, node)
    files = (Path(folder, name) for folder, _, names in os.walk(root / "copies") for name in names)
    return {path.relative_to(root).as_posix() for path in files if path.parent.name.startswith("step-")}


def wait_for_copies(run: Run, node: int, *names: str) -> None:
    wait_until(lambda: set(names) <= copies(run, node), 30, f"node {node} has copies of {names}")


def lose_host(run: Run, node: int) -> None:
    guard = run.guard(node)
    below = processes.descendants(guard.pid)
    processes.send(guard, signal.SIGSTOP)  # so that it starts nothing again
    processes.send_all(below | {guard}, signal.SIGKILL)


def wait_for_end(run: Run, *nodes: int) -> None:
    for node in nodes:
        wait_until(lambda node=node: run.record("exit.json", node), 60, f"the run is over on {node}")
        assert (run.record("exit.json", node) or {})["verdict"]["state"] == "succeeded"
        assert not folder(run, node).exists()


def test_a_spare_gets_the_part_of_a_lost_host_from_its_neighbour(runs: Runs) -> None:
    options = f"max_restarts: 1, lease: 3, {LIMIT}"
    save = "save('step-5-sharded'); save('step-10-sharded'); rank == '0' and save('step-15-sharded')"
    run = runs.start(AMONG_HOSTS, save, "2", nproc=(1, 1, 1, 1), spares=1, options=options)
    for node, before in ((0, 2), (1, 0), (2, 1)):
        wait_for_copies(run, node, f"copies/1-{before}/step-{15 if before == 0 else 10}-sharded/{before}.pt")
    lose_host(run, 1)
    wait_for_end(run, 0, 2, 3)
    assert [has(run, 2, rank, node) for rank, node in ((0, 0), (1, 3), (2, 2))] == [
        [f"step-10-sharded/{rank}.pt"] for rank in range(3)
    ]
    run.stop(1, grace=0.0)
    assert not folder(run, 1).exists()


def test_what_only_the_lost_head_of_the_ranks_saved_is_on_the_next_host(runs: Runs) -> None:
    """Rank 0 alone saves, to a host that is lost; two generations are kept."""
    save = "rank == '1' and [save(f'step-{step}') or time.sleep(1.5) for step in (5, 10, 15)]"
    options = f"max_restarts: 1, lease: 3, {LIMIT}"
    run = runs.start(AMONG_HOSTS, save, "2", nproc=(1, 1, 1, 1), spares=1, options=options)
    wait_for_copies(run, 2, "copies/1-1/step-15/1.pt")
    assert len(copies(run, 2)) == 2 and not copies(run, 0) and not copies(run, 1)
    lose_host(run, 1)
    wait_for_end(run, 0, 2, 3)
    assert [has(run, 2, rank, node) for rank, node in ((0, 0), (1, 3), (2, 2))] == [["step-15/1.pt"]] * 3
    run.stop(1, grace=0.0)


def test_hosts_that_save_the_whole_snapshot_themselves_are_sent_none(runs: Runs) -> None:
    run = runs.start(AMONG_HOSTS, "save('step-5'); save('step-10')", "2", nproc=(1, 1), options=LIMIT)
    for rank in (0, 1):
        run.wait_for("saved", f"1.{rank}.out", rank)
    time.sleep(3)  # that nothing happens cannot be waited for
    assert not copies(run, 0) and not copies(run, 1)


def test_a_killed_recorder_does_not_end_the_copies(runs: Runs) -> None:
    save = "rank == '0' and [save(f'step-{step}') or time.sleep(1) for step in range(100, 200)]"
    run = runs.start(AMONG_HOSTS, save, "2", nproc=(1, 1), options=LIMIT)
    wait_for_copies(run, 1, "copies/1-0/step-100/0.pt")
    for node in (0, 1):
        recorder = run.recorder(node)
        assert recorder is not None
        processes.send(recorder, signal.SIGKILL)
        wait_until(lambda node=node, old=recorder: run.recorder(node) not in (None, old), 20, "there is a new recorder")
        before = copies(run, 1)
        wait_until(lambda before=before: not copies(run, 1) & before, 30, "newer snapshots are copied")


def test_a_copy_that_would_exceed_the_limit_is_not_made_and_the_log_says_so(runs: Runs) -> None:
    save = "rank == '0' and (save('step-5'), open(memory + '/new', 'wb').write(bytes(5 << 20)), "
    save += "os.rename(memory + '/new', memory + '/step-10'))"
    run = runs.start(AMONG_HOSTS, save, "2", nproc=(1, 1), options="memory_limit: 4MiB")
    line = re.compile(rb"run.memory_limit: .*host-0.* 4\.2 MB$", re.MULTILINE)
    wait_until(lambda: line.search(run.journal(1).get("1.run.out", b"")), 20, "the line")
    assert copies(run, 1) <= {"copies/1-0/step-5/0.pt"}
