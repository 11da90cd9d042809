"""The newest run's inventory is remembered, and a memory that cannot be had does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import history


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_newest_inventory_is_found_again_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert history.newest_inventory() is None
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).touch()
        monkeypatch.chdir(tmp_path)
        history.remember(name, f"id-{name}", "mine")
    monkeypatch.chdir("/")
    assert history.newest_inventory() == str(tmp_path / "two.yaml")
    assert history.newest_runs() == [("id-two.yaml", "mine"), ("id-one.yaml", "mine")]
    (tmp_path / "two.yaml").unlink()
    assert history.newest_inventory() is None


def test_a_state_folder_that_cannot_be_made_ends_no_run(state: Path) -> None:
    state.write_text("in the way")
    history.remember("inventory.yaml", "id", "mine")
    assert history.newest_inventory() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inventory": 3, "runs": [["a"], 3]}', "\x00"])
def test_a_damaged_memory_is_none(state: Path, text: str) -> None:
    (state / "ddp-orch").mkdir(parents=True)
    (state / "ddp-orch" / "newest.json").write_text(text)
    assert history.newest_inventory() is None
    assert history.newest_runs() == []


def test_only_so_many_runs_are_remembered() -> None:
    for number in range(history.MOST + 5):
        history.remember("inventory.yaml", str(number), "mine")
    assert [run_id for run_id, _ in history.newest_runs()] == [str(number) for number in range(24, 4, -1)]
