"""constraints.txt, so that a set-up today and one in a year are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def test_every_direct_dependency_has_one_version() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read pyproject.toml")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    pinned = {name.lower() for name in re.findall(r"(?m)^([\w-]+)==", (CHECKOUT / "constraints.txt").read_text())}
    assert {re.split(r"[^\w-]", each)[0].lower() for each in wanted} <= pinned
