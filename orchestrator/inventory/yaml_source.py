"""Parse YAML into a tree of nodes that know their line; every scalar stays text. Reads no file.

PyYAML's safe loader keeps the last of two equal keys, reads `no` as False, `22:22` as 1342 and `022` as 18, dies of a
RecursionError in deep nesting and forgets the lines. So only its parser's events are taken, and the tree is built here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_DEPTH = 64
MAX_NODES = 100_000  # an alias counts as all its nodes, so that nested aliases cannot fill the memory

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


class Mark(NamedTuple):
    """A place in the text, both numbers from 0."""

    line: int
    column: int


class YamlProblem(Exception):
    """The text is not valid YAML, or uses features that are not allowed in an inventory."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


@dataclass(frozen=True)
class Scalar:
    mark: Mark
    text: str  # of a plain scalar: exactly as in the file
    plain: bool  # without quotes, so it may be a number or null

    @property
    def null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True)
class Sequence:
    mark: Mark
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Map:
    mark: Mark
    items: tuple[tuple[Node, Node], ...]  # as in the file, with duplicate keys; those of `<<` come last


Node = Scalar | Sequence | Map


def compose(text: str) -> Node:
    """The only document in `text`. Raises YamlProblem, and nothing else, whatever the text is."""
    import yaml  # imported late: commands without an inventory start faster

    try:
        loader = yaml.BaseLoader(text)
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position)
        raise YamlProblem(Mark(line, 0), f"the character U+{exc.character:04X} is not allowed in YAML") from exc
    try:
        return _Composer().document(iter(loader.get_event, None))
    except yaml.MarkedYAMLError as exc:
        raise _syntax(text, exc) from exc
    except (ValueError, OverflowError) as exc:  # PyYAML does not catch the errors of int() and chr()
        message = "invalid YAML: a number in an escape, or in %YAML, is out of range"
        raise YamlProblem(Mark(loader.line, 0), message) from exc


def _syntax(text: str, exc: Any) -> YamlProblem:
    mark, began = exc.problem_mark, exc.context_mark
    if text[mark.index : mark.index + 1] == "\t":
        return YamlProblem(Mark(mark.line, mark.column), "a tab: use spaces, or put quotes around a string with a tab")
    if hosts := _range_in_brackets(text, mark.index):
        message = f'a range in a list in brackets needs quotes: ["{hosts}"], or a line of its own: - {hosts}'
        return YamlProblem(Mark(mark.line, mark.column), message)
    opening = _OPENINGS.get(str(exc.context))
    if began is not None and opening and (mark.index >= len(text.rstrip()) or mark.line > began.line):
        # PyYAML notices this only later, often at the end of the file; report the line where it starts
        what, end = opening
        return YamlProblem(
            Mark(began.line, began.column), f"the {what} that starts here is not closed: {end} is missing"
        )
    message = f"invalid YAML: {exc.problem}"
    if began is not None:
        message += f" ({exc.context} that starts on line {began.line + 1})"
    if not text[text.rfind("\n", 0, mark.index) + 1 : mark.index].strip():
        message += "; is this line indented like its neighbours?"
    return YamlProblem(Mark(mark.line, mark.column), message)


_OPENINGS = {
    "while parsing a flow sequence": ("list", "]"),
    "while parsing a flow node": ("list or mapping", "] or }"),
    "while parsing a flow mapping": ("mapping", "}"),
    "while scanning a quoted scalar": ("string", "its last quote"),
}
"""By PyYAML's context: what was not closed, and the missing end."""


def _range_in_brackets(text: str, index: int) -> str | None:
    """`gpu[01-16]`, if the error is at the inner bracket of `[gpu[01-16]]`."""
    start = re.search(r"[A-Za-z0-9._-]+$", text[:index][-256:])
    rest = re.match(r"\[[0-9,/-]+\]([A-Za-z0-9._-]|\[[0-9,/-]+\])*", text[index : index + 256])
    return start[0] + rest[0] if start and rest else None


@dataclass
class _Open:
    """A list or mapping that is not closed yet."""

    mark: Mark
    anchor: str | None
    mapping: bool
    count: int  # number of nodes so far, with this one
    nodes: list[Node]  # of a mapping: key, value, key, value


class _Composer:
    """Turns PyYAML's events into one tree, without recursion."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}  # the node, and how many nodes are in it
        self._count = 0

    def document(self, events: Iterator[Any]) -> Node:
        import yaml

        root: Node | None = None
        for event in events:
            mark = Mark(event.start_mark.line, event.start_mark.column)
            done: Node | None = None
            match event:
                case yaml.DocumentStartEvent() if root is not None:
                    raise YamlProblem(mark, "a second document (`---`); an inventory has only one")
                case yaml.AliasEvent():
                    done = self._alias(mark, str(event.anchor))
                case yaml.ScalarEvent():
                    self._enter(mark, event.tag)
                    done = Scalar(mark, event.value, event.style is None)
                    self._name(event.anchor, done, 1)
                case yaml.CollectionStartEvent():
                    self._enter(mark, event.tag)
                    mapping = isinstance(event, yaml.MappingStartEvent)
                    self._open.append(_Open(mark, event.anchor, mapping, self._count, []))
                case yaml.CollectionEndEvent():
                    ended = self._open.pop()
                    done = _mapping(ended) if ended.mapping else Sequence(ended.mark, tuple(ended.nodes))
                    self._name(ended.anchor, done, self._count - ended.count + 1)
            if done is None:
                continue
            if self._open:
                self._open[-1].nodes.append(done)
            else:
                root = done
        return root if root is not None else Scalar(Mark(0, 0), "", True)

    def _enter(self, mark: Mark, tag: str | None, nodes: int = 1) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            raise YamlProblem(mark, f"more than {MAX_NODES:,} values (an alias counts as all the values it repeats)")
        if len(self._open) >= MAX_DEPTH:
            raise YamlProblem(mark, f"nested more than {MAX_DEPTH} levels deep")
        if tag is not None:
            written = tag.replace("tag:yaml.org,2002:", "!!")
            raise YamlProblem(mark, f"the tag {written} is not allowed in an inventory; remove it")

    def _alias(self, mark: Mark, anchor: str) -> Node:
        if anchor not in self._anchors:
            raise YamlProblem(mark, f"the alias *{anchor} is undefined: no complete &{anchor} before it")
        node, count = self._anchors[anchor]
        self._enter(mark, None, count)
        return node

    def _name(self, anchor: str | None, node: Node, count: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, count)


def _mapping(ended: _Open) -> Map:
    items: list[tuple[Node, Node]] = []
    merged: list[tuple[Node, Node]] = []
    for key, value in zip(ended.nodes[::2], ended.nodes[1::2], strict=True):
        if isinstance(key, Scalar) and key.plain and key.text == "<<":
            merged += _merged_items(value)
        else:
            items.append((key, value))
    names = {key.text for key, _ in items if isinstance(key, Scalar)}
    # as in the specification of `<<`: the keys of the mapping win over merged ones, and earlier merged ones over later
    for key, value in merged:
        if not isinstance(key, Scalar):
            items.append((key, value))
        elif key.text not in names:
            names.add(key.text)
            items.append((key, value))
    return Map(ended.mark, tuple(items))


def _merged_items(value: Node) -> list[tuple[Node, Node]]:
    sources = value.items if isinstance(value, Sequence) else (value,)
    items: list[tuple[Node, Node]] = []
    for source in sources:
        if not isinstance(source, Map):
            raise YamlProblem(value.mark, "`<<` needs a mapping, or a list of mappings")
        items += source.items
    return items
