"""constraints.txt, so that a set-up today and one in a year are the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
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


def test_an_installation_has_every_file(tmp_path: Path) -> None:
    """`pip install .`, where the packages of a checkout are not at hand."""
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if name.startswith(("orchestrator/", "trainer/"))]
    source = tmp_path / "source"
    for name in [*files, "pyproject.toml", "README.md", "docs/ddp-orch.1"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source]
    subprocess.run(build, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as installed:
        names = set(installed.namelist())
    assert set(files) <= names
    assert any(name.endswith("/share/man/man1/ddp-orch.1") for name in names)
