"""What is removed of runs that are over, and what never is."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from orchestrator.node import state
from orchestrator.node.retire import retire

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


def run(run_id: str, days: float, *, ended: bool = True, program: str | None = None) -> Path:
    made = folder(Path(state.run_folder(run_id)), days)
    if program is not None:
        state.write(str(made / "spec.json"), {"program": program})
    if ended:
        state.write(str(made / "exit.json"), {"at": time.time() - days * DAY})
    age(made, days)
    return made


def test_the_newest_runs_stay_and_what_is_freed_is_said(program: Path) -> None:
    runs = [run(f"run-{number}", number) for number in range(4)]
    answer = retire(KEEP, str(program))
    assert [one.exists() for one in runs] == [True, True, False, False]
    assert (answer["runs"], answer["left"]) == (["run-2", "run-3"], 2)
    assert answer["freed"] >= 200_000
    assert retire(KEEP, str(program)) == {"runs": [], "unused": 0, "freed": 0, "left": 2}


def test_brief_runs_are_counted_apart(program: Path) -> None:
    long = [run(f"long-{number}", 5 + number, program="node-mine") for number in range(3)]
    for one in long:
        os.utime(one / "spec.json", (time.time() - 9 * DAY,) * 2)
    brief = [run(f"brief-{number}", number, program="node-mine") for number in range(3)]
    retire(KEEP, str(program))
    assert [one.exists() for one in (*long, *brief)] == [True, True, False, True, True, False]


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
