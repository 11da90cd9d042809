"""Put the hosts of a source in the place of `hosts` in an inventory, as YAML nodes. No IO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InventoryError
from ..yaml_source import Map, Mark, Node, Scalar, Sequence
from .source_host import SourceHost

FROM = "from"
_SETS_RANKS = ("gpus", "nproc_per_node")  # in `defaults`: the slots of a source are only a guess

Read = Callable[[str], tuple[SourceHost, ...]]


@dataclass(frozen=True)
class Filled:
    """An inventory with `hosts`."""

    root: Map
    source: str | None
    """Where its hosts come from; None: from the file."""


def fill_in(root: Map, path: str, source: str | None, read: Read) -> Filled:
    """`source`: overrides `from` and `hosts` of the file. Raises InventoryError."""
    items = {key.text: (key, value) for key, value in root.items if isinstance(key, Scalar)}
    key, value = items.get(FROM, (None, None))
    if source is None:
        if key is None or value is None or (isinstance(value, Scalar) and value.null):
            return Filled(_without(root, FROM), None)
        place = f"{path}:{key.mark.line + 1}: from"
        if "hosts" in items:
            raise InventoryError(f"{place}: the file also has `hosts`; keep one of them")
        if not isinstance(value, Scalar) or not value.text.startswith("@"):
            raise InventoryError(f'{place}: expected a source of hosts such as "@slurm" or "@hostfile:FILE"')
        source = value.text
    mark = root.mark if key is None else key.mark
    ranks = not any(name in _SETS_RANKS for name in _names(items["defaults"][1] if "defaults" in items else None))
    hosts = Sequence(mark, tuple(_host_node(mark, host, ranks=ranks) for host in read(source)))
    rest = _without(_without(root, FROM), "hosts")
    return Filled(Map(root.mark, ((Scalar(mark, "hosts", plain=True), hosts), *rest.items)), source)


def _without(root: Map, name: str) -> Map:
    kept = ((key, value) for key, value in root.items if not (isinstance(key, Scalar) and key.text == name))
    return Map(root.mark, tuple(kept))


def _names(node: Node | None) -> list[str]:
    return [key.text for key, _ in node.items if isinstance(key, Scalar)] if isinstance(node, Map) else []


def host_keys(host: SourceHost, *, ranks: bool = True) -> dict[str, str | int]:
    """The keys of this host in an inventory."""
    slots = host.slots if ranks else None
    keys = {name: value for name, value in vars(host).items() if name != "slots" and value is not None}
    if keys.get("address") == host.name:
        del keys["address"]
    return keys if slots is None else {**keys, "nproc_per_node": slots}


def _host_node(mark: Mark, host: SourceHost, *, ranks: bool) -> Node:
    return Map(
        mark,
        tuple(
            (Scalar(mark, name, plain=True), Scalar(mark, str(value), plain=isinstance(value, int)))
            for name, value in host_keys(host, ranks=ranks).items()
        ),
    )
