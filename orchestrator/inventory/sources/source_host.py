"""A host as a hostfile, a scheduler or another tool describes it, and the problems in such a description. No IO."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .. import hostnames

MAX_PORT = 65535
MAX_SLOTS = 1024  # as nproc_per_node


class SourceProblem(ValueError):
    """Lines that cannot be understood. `lines`: (number from 1, what is wrong)."""

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(message for _, message in self.lines))


class NotInJob(ValueError):
    """The source is a job, and its variables are not set."""


@dataclass(frozen=True, kw_only=True)
class SourceHost:
    """One host. Its fields are keys of a host in an inventory; None: the source does not set it."""

    name: str
    address: str | None = None
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    slots: int | None = None
    """Ranks on this host."""

    def __post_init__(self) -> None:
        """Raises ValueError for values that an inventory does not accept."""
        for name in filter(None, (self.name, self.address)):
            hostnames.check(name)
        if self.user is not None and not re.fullmatch(hostnames.USER, self.user):
            message = "a user name has at most 32 letters, digits and . _ -, and starts with a letter or _"
            raise ValueError(f"{hostnames.quoted(self.user)}: {message}")
        if self.port is not None and not 1 <= self.port <= MAX_PORT:
            raise ValueError(f"the port is {self.port}; expected 1 to {MAX_PORT}")
        if self.slots is not None and not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"the number of slots is {self.slots}; expected 1 to {MAX_SLOTS}")
        if self.proxy_jump is not None:
            hostnames.jump_hosts(self.proxy_jump)


def count_repeats(hosts: Iterable[SourceHost]) -> tuple[SourceHost, ...]:
    """Each host once, in the order of its first line.

    The slots of repeated lines add up, and a line without a number is one slot, as in the node file of PBS. If no host
    has a number or a repeat, `slots` stays None. Raises ValueError if two lines of a host differ in other fields.
    """
    lines: dict[str, list[SourceHost]] = {}
    for host in hosts:
        lines.setdefault(host.name, []).append(host)
    has_slots = any(len(repeats) > 1 or repeats[0].slots is not None for repeats in lines.values())
    return tuple(_add_up(repeats) if has_slots else repeats[0] for repeats in lines.values())


def _add_up(repeats: list[SourceHost]) -> SourceHost:
    if len({replace(host, slots=None) for host in repeats}) > 1:
        raise ValueError(f"{repeats[0].name} is listed twice with different users, ports or addresses")
    return replace(repeats[0], slots=sum(1 if host.slots is None else host.slots for host in repeats))


def name_by_port(hosts: Iterable[SourceHost]) -> tuple[SourceHost, ...]:
    """Give hosts that share an address, but not a port, names such as `1.2.3.4-40022`."""
    hosts = tuple(hosts)
    ports: dict[str, set[int | None]] = {}
    for host in hosts:
        ports.setdefault(host.name, set()).add(host.port)
    return tuple(
        replace(host, name=f"{host.name}-{host.port or 22}", address=host.address or host.name)
        if len(ports[host.name]) > 1
        else host
        for host in hosts
    )
