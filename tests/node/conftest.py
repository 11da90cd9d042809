"""The node program on this machine, without SSH."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_runs import HEAVY, Runs, local_runs

if not sys.platform.startswith("linux"):
    collect_ignore_glob = ["*"]  # hosts run Linux, whatever the controller runs on


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with local_runs(tmp_path) as found:
        yield found


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder for modules, on PYTHONPATH of the ranks."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "heavy.py").write_text(HEAVY)
    return folder
