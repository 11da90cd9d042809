"""Paths of modules that comments, docstrings and documents name exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"(?<![\w/.*~-])(?!torch/)(?:[\w-]+/)+[\w*-]+\.py\b")
MODULE = re.compile(r"`([\w*-]+\.py)`")  # in a document, such as `gang.py`
BASES = (ROOT, ROOT / "orchestrator", ROOT / "tests")


def prose(path: Path) -> Iterator[str]:
    """The comments and docstrings of a module, or the whole text of a document."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def missing_paths(path: Path, text: str) -> list[str]:
    """Paths that exist neither below BASES nor below a folder above the naming file; in documents, unknown modules."""
    folders = (*BASES, *(folder for folder in path.parents if folder.is_relative_to(ROOT)))
    paths = [name for name in PATH.findall(text) if not any(any(folder.glob(name)) for folder in folders)]
    modules = MODULE.findall(text) if path.suffix == ".md" else []
    unknown = [name for name in modules if not any(fnmatch(known, name) for known in known_modules())]
    return list(dict.fromkeys([*paths, *unknown]))


@cache
def known_modules() -> frozenset[str]:
    return frozenset(path.name for path in sources())


def sources() -> list[Path]:
    folders = ("orchestrator", "trainer", "tests", "benchmarks")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
    return [path for path in (*modules, *documents) if path.name != "CHANGELOG.md" and "golden" not in path.parts]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see node/gang/gang.py, ui/svg.py and orchestrator/cli.py", []),
        ("see e2e/test_*.py, not https://example.org/a/b.py or /opt/x/y.py", []),
        ("see node/guard/gone.py", ["node/guard/gone.py"]),
        ("`ui/gone.py`: gone", ["ui/gone.py"]),
        ("`gang.py`, `test_ssh_*.py` and `gone.py`", ["gone.py"]),
    ],
)
def test_a_missing_path_is_recognised(text: str, missing: list[str]) -> None:
    assert missing_paths(ROOT / "docs" / "design.md", text) == missing


def test_named_paths_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for text in prose(path)
        for name in missing_paths(path, text)
    ]
    assert sorted(set(missing)) == []
