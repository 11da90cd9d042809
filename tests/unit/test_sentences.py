"""Tests look for facts and codes, so that the words of messages can be made better without them.

A message that is a product by itself is in tests/golden, where UPDATE_GOLDEN=1 writes it anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOST = 30  # tests that may compare with a sentence, as those do that read what other programs print
WORDS = 4
WORD = re.compile(r"[A-Za-z][A-Za-z'-]+[\"')\]]*[.,;:!?]*")
COMMAND = re.compile(r"`[^`]*`|\bddp-orch( [^ ;,)]+)*")  # users paste these: they are no prose
SEARCHES = {"search", "match", "fullmatch", "findall", "startswith", "endswith", "count", "index", "partition"}

Names = Mapping[str, Iterable[str]]


def is_sentence(text: str) -> bool:
    plain = COMMAND.sub(" ", re.sub(r"\\[bsS]", " ", text))
    return sum(WORD.fullmatch(word.lstrip("\"'([")) is not None for word in plain.split()) >= WORDS


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
        return node.value if isinstance(node.value, str) else node.value.decode("latin-1")
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return None


def texts_of(node: ast.AST, names: Names) -> Iterator[str]:
    """The texts of one side of a comparison; what a call gets is its own business."""
    text = text_of(node)
    if text is not None:
        yield text
    elif isinstance(node, ast.Name):
        yield from names.get(node.id, ())
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield from texts_of(node.func.value, names)
    elif not isinstance(node, ast.Subscript):
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child, names)


def compared(function: ast.AST, names: Names) -> Iterator[str]:
    """All texts that a function compares something with, or searches for."""
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            for operand in (node.left, *node.comparators):
                yield from texts_of(operand, names)
        elif isinstance(node, ast.Call):
            searches = isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES
            patterns = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
            for pattern in [*patterns, *(node.args if searches else ())]:
                yield from texts_of(pattern, names)


def pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that an assignment gives to values."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, (ast.Tuple, ast.List)):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from pairs(one, part)


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from pairs(node.targets[0], node.value)
        elif isinstance(node, ast.For) and isinstance(node.iter, (ast.Tuple, ast.List)):
            for value in node.iter.elts:
                yield from pairs(node.target, value)


def parametrized(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    for call in function.decorator_list:
        if not isinstance(call, ast.Call) or len(call.args) < 2 or not isinstance(call.args[1], (ast.List, ast.Tuple)):
            continue
        names = re.findall(r"\w+", ast.unparse(call.args[0]))
        for row in call.args[1].elts:
            if isinstance(row, ast.Call):  # pytest.param
                row = ast.Tuple(row.args) if len(names) > 1 or not row.args else row.args[0]
            cells = [row] if len(names) == 1 else getattr(row, "elts", ())
            yield from zip(names, cells, strict=False)


def sentences(source: str) -> Iterator[tuple[str, list[str]]]:
    """The functions that compare with sentences, and those."""
    tree = ast.parse(source)
    statements = ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], [])
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            names: dict[str, list[str]] = {}
            for name, value in (*assigned(statements), *parametrized(function), *assigned(function)):
                names.setdefault(name, []).extend(texts_of(value, {}))
            found = [text for text in compared(function, names) if is_sentence(text) and not is_of_lines(text)]
            if found:
                yield function.name, found


def is_of_lines(text: str) -> bool:
    """A script, or what one printed: our messages are of one line."""
    return "\n" in text.strip("\n")


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        ("assert 'gpu2' in x and 'port 29400' in x and x != 'exit code 1'", False),
        ("assert x == 'ddp-orch logs -f my run; `ssh gpu2 kill -9 811`'", False),
        ("assert parse('one two three four') == 4", False),
        ("assert x is None, 'one two three four'", False),
        ("assert 'the port is in use' in x", True),
        ("assert re.search(rf'{x}: port .* is in use', x)", True),
        ("assert 'import os\\nprint(1, 2, 3, 4)' in x", False),
        ("y = f'gpu2: {x} is not my port'\n assert x.startswith(y)", True),
        ("with pytest.raises(E, match='the port is in use'): pass", True),
        ("for y, n in (('', 0), ('the port is in use', 1)):\n  assert f(n) == [y]", True),
    ],
)
def test_a_comparison_with_a_sentence_is_recognised(body: str, is_one: bool) -> None:
    assert bool(list(sentences(f"def test():\n {body}\n"))) is is_one


def test_tests_look_for_facts_and_not_for_sentences() -> None:
    found = [
        f"{path.relative_to(TESTS)}::{name}: {texts}"
        for path in sorted(TESTS.rglob("*.py"))
        for name, texts in sentences(path.read_text(encoding="utf-8"))
    ]
    advice = f"{len(found)} tests compare with sentences; assert facts or codes, or use golden_files.assert_message:\n"
    assert len(found) <= MOST, advice + "\n".join(found)


def test_every_golden_message_is_used() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in TESTS.glob("*/test_*.py"))
    messages = TESTS / "golden" / "messages"
    names = {path.stem if path.is_file() else f"{path.name}/" for path in messages.iterdir()}
    assert names and [name for name in sorted(names) if f'"{name}' not in sources] == []
