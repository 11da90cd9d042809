"""What is removed of runs that are over, and what never is."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest

from orchestrator.node.host import state
from orchestrator.node.serve import outputs
from orchestrator.node.serve.retire import BY_WATCH, remove, retire
from orchestrator.runs import registry

DAY = 86400.0
WROTE = "20260101-000000-0001"
KEEP = {"runs": 2, "days": 14}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    return folder(Path(state.base()) / "node-mine", 99)


def folder(path: Path, days: float) -> Path:
    """A folder with 100 kB in it, last written so many days ago."""
    path.mkdir(parents=True)
    (path / "data").write_bytes(bytes(100_000))
    age(path, days)
    return path


def age(path: Path, days: float) -> None:
    for one in (*path.iterdir(), path):
        os.utime(one, (time.time() - days * DAY,) * 2)


def run(run_id: str, days: float, *, ended: bool = True, program: str | None = None) -> Path:
    made = folder(Path(state.run_folder(run_id)), days)
    if program is not None:
        state.write(str(made / "spec.json"), {"program": program})
    if ended:
        state.write(str(made / "exit.json"), {"at": time.time() - days * DAY})
    age(made, days)
    return made


@pytest.mark.usefixtures("program")
def test_a_run_that_has_ended_elsewhere_is_removed_by_its_name_only() -> None:
    ours, other = (run(run_id, 0, ended=False) for run_id in ("run-1", "run-2"))
    answer = remove(["run-1"])
    assert (answer["runs"], answer["left"], ours.exists(), other.exists()) == (["run-1"], 0, False, True)


@pytest.mark.usefixtures("program")
def test_a_run_that_is_named_is_removed_and_nothing_else() -> None:
    unused = folder(Path(state.base()) / "node-old", 99)
    runs = [run(f"run-{number}", number) for number in range(4)]
    answer = remove(["run-1", "no-such-run"])
    assert [one.exists() for one in runs] == [True, False, True, True]
    assert (answer["runs"], answer["left"], unused.exists()) == (["run-1"], 3, True)


@pytest.mark.usefixtures("program")
def test_a_run_whose_guard_lives_is_not_removed_by_its_name() -> None:
    made = run("run-1", 0, ended=False)
    with (made / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove(["run-1"])["runs"] == []
    assert made.exists()


def test_the_newest_runs_stay_and_what_is_freed_is_said(program: Path) -> None:
    runs = [run(f"run-{number}", number) for number in range(4)]
    answer = retire(KEEP, str(program))
    assert [one.exists() for one in runs] == [True, True, False, False]
    assert (answer["runs"], answer["left"]) == (["run-2", "run-3"], 2)
    assert answer["freed"] >= 200_000
    nothing = {"runs": [], "outputs": [], "unused": 0, "freed": 0, "left": 2, "unfetched": [], "unfetched_bytes": 0}
    assert retire(KEEP, str(program)) == nothing


def test_brief_runs_are_counted_apart(program: Path) -> None:
    long = [run(f"long-{number}", 5 + number, program="node-mine") for number in range(3)]
    for one in long:
        os.utime(one / "spec.json", (time.time() - 9 * DAY,) * 2)
    brief = [run(f"brief-{number}", number, program="node-mine") for number in range(3)]
    retire(KEEP, str(program))
    assert [one.exists() for one in (*long, *brief)] == [True, True, False, True, True, False]


def test_a_host_that_was_away_keeps_a_run_as_long_as_the_others_do(program: Path) -> None:
    """A host that comes back writes spec.json anew; one that stays away has no record of the end."""

    def took_100_s(run_id: str, days: float, verdict: dict[str, object]) -> Path:
        at = time.time() - days * DAY
        made = run(run_id, days)
        created = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(at - 100))
        state.write(str(made / "spec.json"), {"program": "node-mine", "created_at": created})
        state.write(str(made / "exit.json"), {"at": at, "verdict": verdict})
        os.utime(made / "spec.json", (at - 5, at - 5))
        return made

    came_back, drained = took_100_s("came-back", 3, {"state": "failed"}), took_100_s("drained", 4, {"left": True})
    stayed_away = run("stayed-away", 2, ended=False, program="node-mine")
    brief = [run(f"brief-{number}", number / 10, program="node-mine") for number in range(3)]
    retire({"runs": 3, "days": 14}, str(program))
    assert all(one.exists() for one in (came_back, drained, stayed_away, *brief))
    retire({"runs": 2, "days": 14}, str(program))
    assert [one.exists() for one in (came_back, drained, stayed_away)] == [True, False, True]
    assert [one.exists() for one in brief] == [True, True, False]


def test_runs_that_up_watch_has_replaced_take_the_place_of_no_other(program: Path) -> None:
    def watched(run_id: str, days: float, name: str) -> Path:
        made = run(run_id, days)
        verdict = {"state": "stopped", "stopped_by": BY_WATCH}
        state.write(str(made / "spec.json"), {"program": "node-mine", "name": name})
        state.write(str(made / "exit.json"), {"at": time.time() - days * DAY, "verdict": verdict})
        return made

    assert BY_WATCH == registry.WATCH
    edits = [watched(f"edit-{number}", 1 + number / 10, "x") for number in range(5)]
    other = watched("edit-y", 2, "y")
    runs = [run(f"run-{number}", 3 + number, program="node-mine") for number in range(3)]
    answer = retire({"runs": 4, "days": 14}, str(program))
    assert [one.exists() for one in (*edits, other)] == [True, False, False, False, False, True]
    assert [one.exists() for one in runs] == [True, True, False]
    assert answer["runs"] == ["edit-1", "edit-2", "edit-3", "edit-4", "run-2"]


def test_a_run_older_than_the_days_goes(program: Path) -> None:
    old, new = run("old-run", 15), run("new-run", 13)
    retire(KEEP, str(program))
    assert (old.exists(), new.exists()) == (False, True)


def test_runs_that_were_lost_or_never_whole_go_too_but_not_at_once(program: Path) -> None:
    lost, cut = run("lost-run", 15, ended=False, program="node-x"), run("cut-run", 15, ended=False)
    young = [run("young-1", 0, ended=False), run("young-2", 0, ended=False), run("young-3", 0, ended=False)]
    retire({"runs": 0, "days": 14}, str(program))
    assert not lost.exists() and not cut.exists()
    assert all(one.exists() for one in young)  # they may be in preparation


def test_a_run_whose_guard_lives_stays_with_its_program_however_old(program: Path) -> None:
    base = Path(state.base())
    needed, unneeded = folder(base / "node-old", 99), folder(base / "node-older", 99)
    alive = run("alive-run", 99, ended=False, program=str(needed))
    with (alive / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        age(alive, 99)
        answer = retire(KEEP, str(program))
    assert alive.exists() and needed.exists() and program.exists()
    assert not unneeded.exists() and answer["unused"] == 1


def test_outputs_are_never_touched(program: Path) -> None:
    output = folder(Path(state.folder("out")) / "mine", 999)
    retire({"runs": 0, "days": 0}, str(program))
    assert (output / "data").exists()


def code_run(run_id: str, days: float) -> Path:
    """A run that works in a copy of its code, as `prepare` makes it."""
    sent = Path(state.folder("code")) / "abc"
    if not sent.exists():
        (sent / "lib").mkdir(parents=True)
        (sent / "train.py").write_text("one")
        (sent / "lib" / "data.py").write_text("two")
        os.utime(sent / "train.py", (1, 1))
    made = run(run_id, days)
    shutil.copytree(sent, made / "code")
    spec = {"name": run_id, "program": "node-mine", "workdir": None, "code": {"sha256": "abc", "cwd": "."}}
    state.write(str(made / "spec.json"), spec)
    age(made, days)
    return made


@pytest.mark.parametrize("path", ["out/model.pt", "lib/data.py"])
def test_a_run_whose_files_beside_the_code_were_not_fetched_stays(program: Path, path: str) -> None:
    clean, wrote = code_run("clean-run", 30), code_run(WROTE, 30)
    (wrote / "code" / "out").mkdir()
    (wrote / "code" / path).write_text("new")
    (wrote / "code" / "lib" / "data.pyc").write_text("not a result")
    answer = retire(KEEP, str(program))
    assert not clean.exists() and wrote.exists()
    assert (answer["runs"], answer["unfetched"], answer["left"]) == (["clean-run"], [WROTE], 1)
    assert answer["unfetched_bytes"] > 100_000

    listed = outputs.listing({"run_id": WROTE, "pattern": "", "parts": ["output", "code"]})
    assert [one[0] for one in listed["files"]] == [f"code/{path}"]
    outputs.fetched({"run_id": WROTE, "written": listed["written"]})
    (wrote / "code" / "train.py").write_text("changed since it was listed")
    assert retire(KEEP, str(program))["unfetched"] == [WROTE]
    outputs.fetched(
        {
            "run_id": WROTE,
            "written": outputs.listing({"run_id": WROTE, "pattern": "", "parts": ["output", "code"]})["written"],
        }
    )
    assert retire(KEEP, str(program))["runs"] == [WROTE]


def test_what_was_not_fetched_goes_when_it_is_forced(program: Path) -> None:
    wrote = code_run(WROTE, 30)
    (wrote / "code" / "model.pt").touch()
    assert retire(KEEP, str(program))["unfetched"] == [WROTE]
    answer = retire(KEEP, str(program), force=True)
    assert (answer["runs"], answer["unfetched"]) == ([WROTE], []) and not wrote.exists()


def test_a_run_of_an_older_version_that_no_command_shows_is_removed(program: Path) -> None:
    made = code_run("check-0a1b2c3d", 30)
    (made / "code" / "model.pt").touch()
    answer = retire(KEEP, str(program))
    assert (answer["runs"], answer["unfetched"]) == (["check-0a1b2c3d"], []) and not made.exists()


def test_the_code_that_a_kept_run_is_compared_with_stays_too(program: Path) -> None:
    kept, sent = code_run("kept-run", 1), Path(state.folder("code")) / "abc"
    unused = folder(Path(state.folder("code")) / "def", 99)
    age(sent, 99)
    assert retire(KEEP, str(program))["unused"] == 1
    assert kept.exists() and sent.exists() and not unused.exists()


def test_a_file_that_was_only_touched_is_not_a_result(program: Path) -> None:
    touched = code_run("touched-run", 30)
    os.utime(touched / "code" / "train.py")
    assert outputs.listing({"run_id": "touched-run", "pattern": "", "parts": ["output", "code"]})["files"] == []


def test_old_runs_of_a_host_that_is_gone_are_removed_from_a_local_disk(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(state.base())
    gone = base / "0123456789ab"
    old, young = folder(gone / "runs" / "old-run", 15), folder(gone / "runs" / "young-run", 13)
    monkeypatch.setattr(state, "filesystem", lambda _: "nfs4")
    retire(KEEP, str(program))
    assert old.exists()  # it may be another host, whose runs are its own to remove
    monkeypatch.setattr(state, "filesystem", lambda _: "ext4")
    assert retire({"runs": 1, "days": 14}, str(program))["runs"] == ["old-run"]
    assert not old.exists() and young.exists()
    output = folder(gone / "out" / "mine", 99)
    age(young, 99)
    retire(KEEP, str(program))
    assert not young.exists() and output.exists()
    shutil.rmtree(gone / "out")
    retire(KEEP, str(program))
    assert gone.exists()  # a host that shares this disk may be about to use it
    age(gone, 15)
    retire(KEEP, str(program))
    assert not gone.exists()
