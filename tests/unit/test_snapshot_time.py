"""How long the script took to save its last snapshot."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node.host import state
from orchestrator.node.recorder import snapshot_time


def run(runs: Path, run_id: str, name: str, seconds: float | None = None) -> str:
    folder = runs / run_id
    folder.mkdir()
    state.write(str(folder / "spec.json"), {"name": name})
    if seconds is not None:
        state.write(str(folder / "snapshot.json"), {"seconds": seconds})
    return str(folder)


def test_it_is_known_once_the_line_has_come(tmp_path: Path) -> None:
    folder = run(tmp_path, "20260101-000000-0001", "mine")
    snapshot_time.end(folder)
    assert snapshot_time.last(folder) is None  # nobody had asked for one
    snapshot_time.begin(folder)
    assert snapshot_time.last(folder) is None
    snapshot_time.end(folder)
    first = snapshot_time.last(folder)
    assert first is not None and first < 60.0
    snapshot_time.begin(folder)
    assert snapshot_time.last(folder) == first


def test_a_signal_of_an_earlier_boot_measures_nothing(tmp_path: Path) -> None:
    folder = run(tmp_path, "20260101-000000-0001", "mine")
    state.write(str(tmp_path / "20260101-000000-0001" / "snapshot.json"), {"asked_at": 1.0, "boot_id": "another"})
    snapshot_time.end(folder)
    assert snapshot_time.last(folder) is None


def test_the_newest_earlier_run_of_the_name_counts(tmp_path: Path) -> None:
    run(tmp_path, "20260101-000000-0001", "mine", 3.0)
    run(tmp_path, "20260102-000000-0001", "mine", 4.0)
    run(tmp_path, "20260103-000000-0001", "other", 5.0)
    run(tmp_path, "20260104-000000-0001", "mine")
    folder = run(tmp_path, "20260105-000000-0001", "mine")
    run(tmp_path, "20260106-000000-0001", "mine", 7.0)
    assert snapshot_time.of_earlier_run(folder, "mine") == 4.0
    assert snapshot_time.of_earlier_run(folder, "never") is None
