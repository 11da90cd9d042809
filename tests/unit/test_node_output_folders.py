"""Output folders of runs: listed, and removed where no run uses them."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from orchestrator.node.host import state
from orchestrator.node.serve import output_folders

UNNAMED = "20260101-120000-abcd"


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def folder(name: str, days: float = 0) -> Path:
    made = Path(state.folder("out", name))
    (made / "deep").mkdir()
    (made / "deep" / "model.pt").write_bytes(bytes(100_000))
    for path in (*made.rglob("*"), made):
        os.utime(path, (time.time() - days * 86400,) * 2)
    return made


def test_folders_are_listed_with_their_size_and_age(base: Path) -> None:
    made = folder("mine", days=3)
    os.utime(made / "deep" / "model.pt", (time.time() - 86400,) * 2)  # written to since
    made.with_name("link").symlink_to("/etc")
    run = Path(state.run_folder("run-1"))
    run.mkdir()
    state.write(str(run / "spec.json"), {"name": "mine"})
    with (run / "run.lock").open("w") as lock:
        (found,) = output_folders.listing({})["folders"]
        assert not found["in_use"]
        fcntl.flock(lock, fcntl.LOCK_EX)
        (found,) = output_folders.listing({})["folders"]
    assert (found["name"], found["in_use"]) == ("mine", True)
    assert found["bytes"] >= 100_000 and 86400 <= found["age"] < 2 * 86400


def test_only_what_is_named_is_removed_and_never_what_a_run_uses() -> None:
    mine, other, used = folder("mine"), folder("other"), folder("used")
    lock = Path(state.folder("locks")) / "name-used"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = output_folders.remove({"names": ["mine", "used", "none", "../runs"]})
        assert answer["removed"] == ["mine"] and answer["freed"] >= 100_000
    assert (mine.exists(), other.exists(), used.exists()) == (False, True, True)
    assert output_folders.remove({"names": ["used"]})["removed"] == ["used"]  # over by now


def test_old_outputs_of_runs_without_a_name_can_be_retired() -> None:
    old, young, named = folder(UNNAMED, 31), folder("20260101-120000-beef", 29), folder("mine", 99)
    assert output_folders.retire(30)["removed"] == [UNNAMED]
    assert (old.exists(), young.exists(), named.exists()) == (False, True, True)


def test_outputs_of_a_run_whose_guard_lives_are_not_retired() -> None:
    old = folder(UNNAMED, 31)
    run = Path(state.run_folder(UNNAMED))
    run.mkdir()
    state.write(str(run / "spec.json"), {"name": UNNAMED})
    with (run / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert output_folders.retire(30)["removed"] == []
    assert old.exists()
    assert output_folders.retire(30)["removed"] == [UNNAMED]


def test_outputs_are_kept_where_no_lock_can_be_had() -> None:
    old = folder(UNNAMED, 31)
    (Path(state.folder("locks")) / f"name-{UNNAMED}").mkdir()  # cannot be opened for writing
    assert output_folders.retire(30)["removed"] == []
    assert old.exists()
