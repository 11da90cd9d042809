"""The list of hosts in an inventory: each is a name, a range or a mapping. The keys of a mapping: schema.py. No IO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from . import any_of, hostnames
from .values import Kind, Reading, like, text
from .yaml_source import Map, Mark, Node, Scalar, Sequence


@dataclass(frozen=True)
class HostEntry:
    """One item under `hosts`, which may be a range of several hosts."""

    key: str  # hosts[2]
    mark: Mark
    values: dict[str, Any]


@dataclass(frozen=True)
class HostList:
    """The value of `hosts`."""

    entries: tuple[HostEntry, ...] = ()
    any_of: int | None = None
    """How many of these hosts a run uses; None: all."""


class HostKeys(Protocol):
    """The keys of a host: a schema.Section."""

    def read(self, node: Node, key: str, reading: Reading) -> dict[str, Any]: ...
    def defaults(self) -> dict[str, Any]: ...
    def write(self, value: Any) -> dict[str, Any]: ...


def _check_path_or_name(value: str) -> str:
    if not re.fullmatch(r"/.*|[^/~-][^/]*", value, re.DOTALL):
        raise ValueError("expected an absolute path, or a name on the PATH after setup (~ is not expanded)")
    return value


def _check_jumps(value: str) -> str:
    hostnames.jump_hosts(value)
    return value


USER = like("a user name of at most 32 letters, digits and . _ -", hostnames.USER)
JUMPS = text("[user@]host[:port], several separated by commas", _check_jumps)
PYTHON = text("a path or a name", _check_path_or_name)


def hosts_kind(keys: HostKeys) -> Kind:
    """The kind of the key `hosts`. Its value is a HostList."""
    return Kind(
        f"a list of hosts such as [lovelace, hopper], or {any_of.FORM}",
        partial(_read_host_list, keys),
        lambda hosts: [keys.write(host) for host in hosts],
    )


def witness_kind(keys: HostKeys) -> Kind:
    """The kind of the key `run.witness`. Its value is a HostEntry of one host."""
    return Kind("the name of a host or a mapping", partial(_read_witness, keys), keys.write)


def _read_witness(keys: HostKeys, node: Node, key: str, reading: Reading) -> HostEntry:
    values = _read_host(keys, node, key, reading)
    if isinstance(node, Map) and f"{key}.name" not in reading.marks:
        raise ValueError("has no name")
    if len(values["name"]) > 1:
        raise ValueError(f"expected one host, got {len(values['name'])}")
    return HostEntry(key, node.mark, values)


def _read_host_list(keys: HostKeys, node: Node, key: str, reading: Reading) -> HostList:
    """A list, `any N of [...]`, or `{any: N, of: [...]}`, in which hosts may be mappings."""
    count = None
    if isinstance(node, Scalar) and (parsed := any_of.parse(node.text)) is not None:
        count, rest = parsed
        node = Sequence(node.mark, tuple(Scalar(node.mark, name, plain=True) for name in any_of.names(rest)))
    elif isinstance(node, Map):
        items = {name.text: value for name, value in node.items if isinstance(name, Scalar)}
        number = items.get("any")
        if set(items) != {"any", "of"} or not isinstance(number, Scalar) or not number.text.isdecimal():
            raise ValueError("expected a list such as [lovelace, hopper], or the keys `any` (a number) and `of`")
        count, node = int(number.text[:6]), items["of"]
    entries = _read_hosts(keys, node, key, reading)
    if count is not None:
        any_of.check(count, sum(len(entry.values["name"]) for entry in entries))
    return HostList(entries, count)


def _read_hosts(keys: HostKeys, node: Node, key: str, reading: Reading) -> tuple[HostEntry, ...]:
    if not isinstance(node, Sequence) or not node.items:
        raise ValueError
    kind = Kind("the name of a host or a mapping", partial(_read_host, keys))
    entries: list[HostEntry] = []
    names = 0
    for number, item in enumerate(node.items):
        inner = f"{key}[{number}]"
        values = reading.read(kind, item, inner, keys.defaults())
        entries.append(HostEntry(inner, item.mark, values))
        names += len(values["name"])
        if names > hostnames.MAX_HOSTS:
            raise ValueError(f"more than {hostnames.MAX_HOSTS:,} hosts")
        if isinstance(item, Map) and f"{inner}.name" not in reading.marks:
            reading.wrong(item.mark, inner, "has no name")
    return tuple(entries)


def _read_host(keys: HostKeys, node: Node, key: str, reading: Reading) -> dict[str, Any]:
    if isinstance(node, Map):
        return keys.read(node, key, reading)
    if not isinstance(node, Scalar) or node.null:
        raise ValueError
    user, at, name = node.text.rpartition("@")
    values = keys.defaults() | {"name": hostnames.expand(name)}
    if at:
        values["user"] = reading.read(USER, Scalar(node.mark, user, plain=False), key, None)
        reading.marks[f"{key}.user"] = node.mark
    return values
