"""What is removed of runs that are over, and what never is."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import decode
from orchestrator.answers.finished import Finished
from orchestrator.node.host import state
from orchestrator.node.serve import outputs
from orchestrator.node.serve.retire import BY_CHECK, BY_WATCH, look, prune, tidy
from orchestrator.runs import pruning, registry

DAY = 86400.0
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


def id_of(name: str) -> str:
    """A run id for a name of these tests."""
    return f"20260101-000000-{zlib.crc32(name.encode()) & 0xFFFF:04x}"


WROTE = id_of("wrote")


def finished(keep: dict[str, int], only: list[str] | None = None) -> Finished:
    return decode(Finished, look(keep, only), "finished")


def retire(keep: dict[str, int], program: str, *, force: bool = False) -> dict[str, Any]:
    """What the controller does where this host is the only one. Runs that are only kept for their files: `unfetched`"""
    choice = pruning.choose({"a": finished(keep)}, force=force)
    answer = prune({"runs": choice.on("a"), "keep": keep}, program)
    return {**answer, "unfetched": choice.unfetched.get("a", {})}


def ids(*names: str) -> list[str]:
    return sorted(map(id_of, names))


def run(name: str, days: float, *, ended: bool = True, program: str | None = None) -> Path:
    made = folder(Path(state.run_folder(id_of(name))), days)
    if program is not None:
        state.write(str(made / "spec.json"), {"program": program})
    if ended:
        state.write(str(made / "exit.json"), {"at": time.time() - days * DAY})
    age(made, days)
    return made


@pytest.mark.usefixtures("program")
def test_a_run_that_has_ended_elsewhere_is_removed_by_its_name_only() -> None:
    ours, other = (run(run_id, 0, ended=False) for run_id in ("run-1", "run-2"))
    assert [due.run_id for due in finished(KEEP, ids("run-1")).due] == ids("run-1")
    answer = prune({"runs": ids("run-1"), "keep": None}, "")
    assert (answer["runs"], answer["left"], ours.exists(), other.exists()) == (ids("run-1"), 0, False, True)


@pytest.mark.usefixtures("program")
def test_a_run_that_is_named_is_removed_and_nothing_else() -> None:
    unused = folder(Path(state.base()) / "node-old", 99)
    runs = [run(f"run-{number}", number) for number in range(4)]
    answer = prune({"runs": ids("run-1", "no-such-run"), "keep": None}, "")
    assert [one.exists() for one in runs] == [True, False, True, True]
    assert (answer["runs"], answer["left"], unused.exists()) == (ids("run-1"), 3, True)


@pytest.mark.usefixtures("program")
def test_a_run_whose_guard_lives_is_not_removed_by_its_name() -> None:
    made = run("run-1", 0, ended=False)
    with (made / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asked = finished(KEEP, ids("run-1"))
        assert (asked.due, asked.others) == ((), tuple(ids("run-1")))
        assert prune({"runs": ids("run-1"), "keep": None}, "")["runs"] == []
    assert made.exists()


def test_the_newest_runs_stay_and_what_is_freed_is_said(program: Path) -> None:
    runs = [run(f"run-{number}", number) for number in range(4)]
    answer = retire(KEEP, str(program))
    assert [one.exists() for one in runs] == [True, True, False, False]
    assert (answer["runs"], answer["left"]) == (ids("run-2", "run-3"), 2)
    assert answer["freed"] >= 200_000
    nothing = {"runs": [], "outputs": [], "unused": 0, "freed": 0, "left": 2, "unfetched": {}}
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
    assert answer["runs"] == ids("edit-1", "edit-2", "edit-3", "edit-4", "run-2")


def test_runs_of_checks_take_the_place_of_no_other(program: Path) -> None:
    def check(name: str, days: float) -> Path:
        made = run(name, days, program="node-mine")
        state.write(str(made / "spec.json"), {"program": "node-mine", "by": BY_CHECK})
        return made

    assert BY_CHECK == registry.CHECK
    checks = [check("check-1", 1), check("check-2", 2)]
    runs = [run(f"run-{number}", 3 + number, program="node-mine") for number in range(3)]
    retire({"runs": 2, "days": 14}, str(program))
    assert [one.exists() for one in (*checks, *runs)] == [True, False, True, True, False]
    old = check("check-0", 15)
    retire({"runs": 2, "days": 14}, str(program))
    assert not old.exists()


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


def code_run(name: str, days: float) -> Path:
    """A run that works in a copy of its code, as `prepare` makes it."""
    sent = Path(state.folder("code")) / "abc"
    if not sent.exists():
        (sent / "lib").mkdir(parents=True)
        (sent / "train.py").write_text("one")
        (sent / "lib" / "data.py").write_text("two")
        os.utime(sent / "train.py", (1, 1))
    made = run(name, days)
    shutil.copytree(sent, made / "code")
    spec = {"name": name, "program": "node-mine", "workdir": None, "code": {"sha256": "abc", "cwd": "."}}
    state.write(str(made / "spec.json"), spec)
    age(made, days)
    return made


@pytest.mark.parametrize("path", ["out/model.pt", "lib/data.py"])
def test_a_run_whose_files_beside_the_code_were_not_fetched_stays(program: Path, path: str) -> None:
    clean, wrote = code_run("clean-run", 30), code_run("wrote", 30)
    (wrote / "code" / "out").mkdir()
    (wrote / "code" / path).write_text("new")
    (wrote / "code" / "lib" / "data.pyc").write_text("not a result")
    answer = retire(KEEP, str(program))
    assert not clean.exists() and wrote.exists()
    assert (answer["runs"], [*answer["unfetched"]], answer["left"]) == (ids("clean-run"), [WROTE], 1)
    assert answer["unfetched"][WROTE] > 100_000

    listed = outputs.listing({"run_id": WROTE, "pattern": "", "parts": ["output", "code"]})
    assert [one[0] for one in listed["files"]] == [f"code/{path}"]
    outputs.fetched({"run_id": WROTE, "written": listed["written"]})
    (wrote / "code" / "train.py").write_text("changed since it was listed")
    assert retire(KEEP, str(program))["unfetched"].keys() == {WROTE}
    outputs.fetched(
        {
            "run_id": WROTE,
            "written": outputs.listing({"run_id": WROTE, "pattern": "", "parts": ["output", "code"]})["written"],
        }
    )
    assert retire(KEEP, str(program))["runs"] == [WROTE]


def test_what_was_not_fetched_goes_when_it_is_forced(program: Path) -> None:
    wrote = code_run("wrote", 30)
    (wrote / "code" / "model.pt").touch()
    assert retire(KEEP, str(program))["unfetched"].keys() == {WROTE}
    answer = retire(KEEP, str(program), force=True)
    assert (answer["runs"], answer["unfetched"]) == ([WROTE], {}) and not wrote.exists()


def test_a_run_of_an_older_version_that_no_command_shows_is_removed(program: Path) -> None:
    made = code_run("old", 30)
    made = made.rename(made.with_name("check-0a1b2c3d"))
    (made / "code" / "model.pt").touch()
    assert not finished(KEEP).due
    tidy(KEEP, str(program))
    assert not made.exists()


def test_the_code_that_a_kept_run_is_compared_with_stays_too(program: Path) -> None:
    kept, sent = code_run("kept-run", 1), Path(state.folder("code")) / "abc"
    unused = folder(Path(state.folder("code")) / "def", 99)
    age(sent, 99)
    assert retire(KEEP, str(program))["unused"] == 1
    assert kept.exists() and sent.exists() and not unused.exists()


def test_a_file_that_was_only_touched_is_not_a_result(program: Path) -> None:
    touched = code_run("touched-run", 30)
    os.utime(touched / "code" / "train.py")
    assert outputs.listing({"run_id": id_of("touched-run"), "pattern": "", "parts": ["output", "code"]})["files"] == []


def test_old_runs_of_a_host_that_is_gone_are_removed_from_a_local_disk(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(state.base())
    gone = base / "0123456789ab"
    old, young = folder(gone / "runs" / id_of("old-run"), 15), folder(gone / "runs" / id_of("young-run"), 13)
    monkeypatch.setattr(state, "filesystem", lambda _: "nfs4")
    retire(KEEP, str(program))
    assert old.exists()  # it may be another host, whose runs are its own to remove
    monkeypatch.setattr(state, "filesystem", lambda _: "ext4")
    assert retire({"runs": 1, "days": 14}, str(program))["runs"] == ids("old-run")
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


# --- all hosts of a run

BOTH = {"nodes": [{"host": "a"}, {"host": "b"}]}
WEEKS = {"runs": 1, "days": 14}


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Continue on the host with this name."""

    def switch(host: str) -> None:
        monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / host))
        state._HOST_IDS.clear()

    return switch


def part(name: str, days: float, node: int, verdict: dict[str, Any] | None) -> Path:
    """The part of a host in a run of the hosts a and b that took an hour. Without a verdict, the host was off."""
    made = run(name, days, ended=False, program="node-mine")
    state.write(str(made / "spec.json"), {**BOTH, "node": node, "program": "node-mine"})
    at = time.time() - days * DAY
    if verdict is not None:
        state.write(str(made / "exit.json"), {"at": at, "verdict": verdict})
    age(made, days)
    os.utime(made / "spec.json", (at - 3600, at - 3600))
    return made


ENDED = {"state": "succeeded"}


def test_a_run_is_due_only_where_all_of_its_hosts_would_delete_it(on: Callable[[str], None]) -> None:
    on("a")
    part("both", 3, 0, ENDED)
    part("newer", 2, 0, ENDED)
    of_a = finished(WEEKS)
    on("b")
    part("both", 3, 1, ENDED)
    assert pruning.choose({"a": of_a, "b": finished(WEEKS)}).runs == {}
    part("newer", 2, 1, ENDED)
    assert pruning.choose({"a": of_a, "b": finished(WEEKS)}).runs == {id_of("both"): ("a", "b")}
    assert pruning.choose({"a": of_a}).waiting == {id_of("both"): ("b",)}
    assert pruning.choose({"other-name-of-a": of_a, "b": finished(WEEKS)}).runs  # its node number tells who it is


def test_a_run_that_is_gone_on_its_other_host_does_not_stay(on: Callable[[str], None]) -> None:
    on("a")
    part("both", 15, 0, ENDED)
    nothing = Finished((), ())
    assert pruning.choose({"a": finished(WEEKS), "b": nothing}).runs == {id_of("both"): ("a",)}
    assert pruning.choose({"a": finished(WEEKS), "b": nothing}, ["b"]).waiting  # it could not read its usual folder


@pytest.mark.parametrize(
    ("verdict", "days", "goes"),
    [
        (ENDED, 15, False),
        (ENDED, 29, True),
        ({"state": "lost"}, 29, True),
        ({"state": "stopped", "left": True}, 999, False),  # drained: the run may go on without it
        (None, 999, False),  # so may it after a reboot
    ],
)
def test_an_old_run_does_not_wait_for_hosts_that_never_answer_if_it_has_ended_for_sure(
    on: Callable[[str], None], verdict: dict[str, Any] | None, days: float, goes: bool
) -> None:
    on("a")
    part("both", days, 0, verdict)
    choice = pruning.choose({"a": finished(WEEKS)})
    assert (bool(choice.runs), bool(choice.waiting)) == (goes, not goes)


def test_a_drained_host_keeps_its_part_until_the_run_has_ended_on_the_others(on: Callable[[str], None]) -> None:
    on("a")
    part("both", 99, 0, {"state": "stopped", "left": True})
    of_a = finished(WEEKS)
    on("b")
    running = part("both", 99, 1, None)
    with (running / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert pruning.choose({"a": of_a, "b": finished(WEEKS)}).runs == {}
    age(running, 99)
    assert pruning.choose({"a": of_a, "b": finished(WEEKS)}).runs


def test_files_on_one_host_keep_the_run_on_all(on: Callable[[str], None]) -> None:
    on("a")
    wrote = code_run("both", 15)
    (wrote / "code" / "model.pt").touch()
    of_a = finished(WEEKS)
    on("b")
    part("both", 15, 1, ENDED)
    answers = {"a": of_a, "b": finished(WEEKS)}
    choice = pruning.choose(answers)
    assert choice.runs == {} and list(choice.unfetched) == ["a"]
    assert pruning.choose(answers, force=True).runs == {id_of("both"): ("a", "b")}


@pytest.mark.parametrize(
    ("count", "size", "is_named"), [(0, 0, False), (2, 400_000, False), (2, 50_000_000, True), (20, 40_000, True)]
)
def test_runs_that_are_kept_for_files_that_were_not_fetched_are_named_if_they_take_much(
    count: int, size: int, is_named: bool
) -> None:
    assert pruning.are_many({id_of(str(number)): size for number in range(count)}) is is_named
