"""Samples that are kept during a run."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from orchestrator.node.recorder import history
from orchestrator.node.recorder.history import NAME, History


def test_samples_are_kept_with_their_times(tmp_path: Path) -> None:
    kept = History(str(tmp_path))
    kept.take()
    kept.take()
    first, second = history.read(str(tmp_path))
    assert first["at"] <= second["at"]
    assert second["cpu"][1] >= first["cpu"][1] > 0 and first["memory"][1] > first["memory"][0] > 0
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_a_long_run_keeps_samples_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 8)
    clock = iter(range(1000))
    monkeypatch.setattr(history.time, "time", lambda: next(clock))
    monkeypatch.setattr(history.machine, "usage", dict)
    kept = History(str(tmp_path))
    for _ in range(40):
        kept.take()
    times = [one["at"] for one in history.read(str(tmp_path))]
    assert len(times) < 8 and times[0] == 0 and times[-1] > 30
    assert kept._every > history.EVERY


def test_what_was_cut_short_is_passed_over_and_a_full_disk_is_no_error(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"at": 1}\n{"at": 2}\n{"at"')
    assert [one["at"] for one in history.read(str(tmp_path))] == [1, 2]
    History(str(tmp_path / "nowhere")).take()
    assert history.read(str(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("gap", [3600.0, 0.1])
def test_the_interval_is_kept_over_a_time_without_a_recorder(tmp_path: Path, gap: float) -> None:
    times = [20.0 * number for number in range(10)]
    times.append(times[-1] + gap)
    (tmp_path / NAME).write_text("".join(f'{{"at": {at}}}\n' for at in times))
    assert History(str(tmp_path))._every == 20.0


def test_a_host_without_room_for_one_more_thread_has_no_samples_and_a_recorder(
    tmp_path: Path,
) -> None:
    threading.stack_size(1 << 46)  # more than there are addresses: no thread can be started
    try:
        History(str(tmp_path)).start()
    finally:
        threading.stack_size(0)
    assert history.read(str(tmp_path)) == []
