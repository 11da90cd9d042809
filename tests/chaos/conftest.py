"""By default the short form of the suite: tests marked `short`. `CHAOS=full` (make chaos) runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .trial import FULL, SEED

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if HERE in item.path.parents and not FULL and not _is_short(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_short(item: pytest.Item) -> bool:
    return item.get_closest_marker("short") is not None


def pytest_report_header() -> str:
    return f"chaos: {'full' if FULL else 'short form'}, CHAOS_SEED={SEED}"
