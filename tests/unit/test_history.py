"""Runs started from this machine are remembered with their inventories; a memory that cannot be had does no harm."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.runs import recent

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_newest_inventory_is_found_again_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recent.newest_inventory() is None
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).touch()
        monkeypatch.chdir(tmp_path)
        recent.remember(name, f"id-{name}", "mine")
    monkeypatch.chdir("/")
    assert recent.newest_inventory() == str(tmp_path / "two.yaml")
    assert [(run.run_id, run.name) for run in recent.newest()] == [("id-two.yaml", "mine"), ("id-one.yaml", "mine")]
    (tmp_path / "two.yaml").unlink()
    assert recent.newest_inventory() is None


def test_a_run_leads_to_its_inventory_by_id_name_and_either_end_of_the_id(tmp_path: Path) -> None:
    one, two = (str(tmp_path / name) for name in ("one.yaml", "two.yaml"))
    for path, run_id, name in (
        (one, "20261122-070000-abcd", "nightly"),
        (two, "20261123-070000-ef01", "nightly"),
        (two, "20261124-070000-ef02", "abcd"),
    ):
        Path(path).touch()
        recent.remember(path, run_id, name)
    assert recent.inventories_of("20261122-070000-abcd") == [one]
    assert recent.inventories_of("nightly") == [two, one]
    assert recent.inventories_of("20261123") == [two]
    assert recent.inventories_of("abcd") == [two], "a name is meant rather than the end of an id"
    assert recent.inventories_of("ef01") == [two]
    assert recent.inventories_of("f01") == recent.inventories_of("") == recent.inventories_of("other") == []
    Path(one).unlink()
    assert recent.inventories_of("nightly") == [two]


def test_runs_that_start_at_the_same_moment_are_all_remembered(tmp_path: Path) -> None:
    code = "import sys; from orchestrator.runs.recent import remember; remember(sys.argv[1], sys.argv[1], 'mine')"
    started = [subprocess.Popen([sys.executable, "-c", code, str(number)], cwd=ROOT) for number in range(12)]
    assert [process.wait() for process in started] == [0] * 12
    assert {run.run_id for run in recent.newest()} == {str(number) for number in range(12)}


def test_the_memory_is_private(state: Path) -> None:
    recent.remember("inventory.yaml", "id", "mine")
    assert stat.S_IMODE((state / "ddp-orch/newest.json").stat().st_mode) == 0o600


def test_a_state_folder_that_cannot_be_made_ends_no_run(state: Path) -> None:
    state.write_text("in the way")
    recent.remember("inventory.yaml", "id", "mine")
    assert recent.newest_inventory() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": 3}', '{"runs": [["a", "b"], 3]}', "\x00"])
def test_a_damaged_memory_is_none(state: Path, text: str) -> None:
    (state / "ddp-orch").mkdir(parents=True)
    (state / "ddp-orch" / "newest.json").write_text(text)
    assert recent.newest_inventory() is None
    assert recent.newest() == []


def test_only_so_many_runs_are_remembered() -> None:
    for number in range(recent.MAX_RUNS + 5):
        recent.remember("inventory.yaml", str(number), "mine")
    assert [run.run_id for run in recent.newest()] == [str(number) for number in range(recent.MAX_RUNS + 4, 4, -1)]
