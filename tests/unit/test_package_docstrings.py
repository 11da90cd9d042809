"""The docstring of a package lists each of its modules, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    file.parent for package in ("orchestrator", "trainer") for file in (ROOT / package).rglob("__init__.py")
)


def listed_modules(docstring: str) -> list[str]:
    """The first words of the lines `name  purpose`."""
    return re.findall(r"^(\w+) {2,}\S", docstring, re.MULTILINE)


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_package_lists_its_modules(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    modules = [file.stem for file in folder.glob("*.py") if not file.stem.startswith("__")]
    assert sorted(listed_modules(docstring)) == sorted(modules)


def test_listed_modules_are_the_names_before_a_purpose() -> None:
    assert listed_modules("Rooms.\n\nfirst   what it does\nsecond  more\n        of it\n\nA sentence  in prose.") == [
        "first",
        "second",
    ]
