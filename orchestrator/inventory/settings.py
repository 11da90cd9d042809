"""Settings of the command line: `--set run.max_restarts=3` replaces a value of the inventory. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import InventoryError
from . import schema
from .nearest_key import nearest_key
from .values import shown
from .yaml_source import Map, Mark, Node, Scalar, YamlProblem, compose
from .yaml_source import Sequence as List

SECTIONS = ("run", "notify")
"""What can be set. The file has the rest, because later commands about the run read the file again."""
NPROC = "nproc_per_node"


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
            raise InventoryError(f"--set {shown(key)}: only keys of run and notify can be set{_advise(names, value)}")
        try:
            node = compose(value)
        except YamlProblem as exc:
            raise InventoryError(f"--set {shown(key)}: {shown(exc.message, 500)}") from exc
        root = _replace(root, names, _mark(node, Mark(-1 - number, 0)))
    return root


def _advise(names: Sequence[str], value: str) -> str:
    """Advice about a key that is in neither section: `max_restarts`, `runs.max_restarts`, `python`."""
    if names[-1] == NPROC:
        number = value if value.isdigit() else "N"
        where = f"{NPROC} of the hosts in the inventory"
        return f"; set {where}, or for one run: ddp-orch up -- torchrun --{NPROC}={number} SCRIPT"
    sections = [section for section in schema.SECTIONS if section.name.partition(".")[0] in SECTIONS]
    paths = {key.name: f"{section.name}.{key.name}" for section in reversed(sections) for key in section.keys}
    others = {key.name for section in schema.SECTIONS if section not in sections for key in section.keys}
    for rest in (names, names[1:]):  # without its section, and with a wrong one
        inner = ".".join(rest)
        whole = [path for path in paths.values() if path.endswith(f".{inner}")]
        if whole or rest[:1] == ["env"]:
            return f"; did you mean {(whole or [f'run.{inner}'])[0]}?"
        if names[0] in others:
            break
    if names[0] in others and names[0] not in SECTIONS:
        return f"; set {shown(names[0])} in the inventory"
    near = nearest_key(names[-1], list(paths), list(paths)) if names[0] not in SECTIONS else None
    return f"; did you mean {paths[near]}?" if near else ", such as run.grace"


def variables(settings: Sequence[str]) -> Mapping[str, str | None]:
    """The variables of run.env that the settings give to the ranks. None: null, or no single value."""
    root: Node = apply(Map(Mark(0, 0), ()), settings)
    for name in ("run", "env"):
        pairs = root.items if isinstance(root, Map) else ()
        root = next((node for key, node in pairs if _is(key, name)), Scalar(Mark(0, 0), "", plain=True))
    return {
        key.text: node.text if isinstance(node, Scalar) and not node.null else None
        for key, node in (root.items if isinstance(root, Map) else ())
        if isinstance(key, Scalar)
    }


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
