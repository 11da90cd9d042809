"""Settings of the command line: `--set run.max_restarts=3` replaces a value of the inventory. No IO."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InventoryError
from .values import shown
from .yaml_source import Map, Mark, Node, Scalar, YamlProblem, compose
from .yaml_source import Sequence as List

SECTIONS = ("run", "notify")
"""What can be set. The file has the rest, because later commands about the run read the file again."""


def apply(root: Map, settings: Sequence[str]) -> Map:
    """The same tree with the value of each KEY=VALUE. The last one of a key wins. The schema is checked later.

    The marks of these values have negative lines: see `key_at`. Raises InventoryError.
    """
    for number, setting in enumerate(settings):
        key, equals, value = setting.partition("=")
        names = key.split(".")
        if not equals or not all(names):
            raise InventoryError(f"--set {shown(setting)}: expected KEY=VALUE, such as run.max_restarts=3")
        if names[0] not in SECTIONS or len(names) < 2:
            raise InventoryError(f"--set {shown(key)}: only keys of run and notify can be set, such as run.grace")
        try:
            node = compose(value)
        except YamlProblem as exc:
            raise InventoryError(f"--set {shown(key)}: {shown(exc.message, 500)}") from exc
        root = _replace(root, names, _mark(node, Mark(-1 - number, 0)))
    return root


def key_at(mark: Mark, settings: Sequence[str]) -> str | None:
    """The key of the setting that a mark is in; None if it is in the file."""
    return settings[-1 - mark.line].partition("=")[0] if mark.line < 0 else None


def _replace(parent: Map, names: Sequence[str], value: Node) -> Map:
    """The mapping with the value at this path. What is not a mapping on the way is replaced by one."""
    name, *rest = names
    if rest:
        inner = next((node for key, node in parent.items if _is(key, name)), None)
        value = _replace(inner if isinstance(inner, Map) else Map(value.mark, ()), rest, value)
    others = tuple((key, node) for key, node in parent.items if not _is(key, name))
    return Map(parent.mark, (*others, (Scalar(value.mark, name, plain=True), value)))


def _is(key: Node, name: str) -> bool:
    return isinstance(key, Scalar) and key.text == name


def _mark(node: Node, mark: Mark) -> Node:
    """The same node with this mark, also in all nodes in it."""
    match node:
        case Scalar(_, text, plain):
            return Scalar(mark, text, plain)
        case List(_, items):
            return List(mark, tuple(_mark(item, mark) for item in items))
        case Map(_, pairs):
            return Map(mark, tuple((_mark(key, mark), _mark(value, mark)) for key, value in pairs))
