"""Choose the fastest network that hosts share, and remember for the next `up` what `check` measured and chose.

That is in a file on this machine. Losing it is harmless: `up` then uses the speeds of the links.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..inventory.model import Host

AS_FAST = 0.8  # networks with this share of the best bandwidth count as equally fast
MUCH_FASTER = (
    2  # for some of the hosts of `check`, another network than the chosen one is used if it is this much faster
)
MAX_PAIRS = 4096  # pairs of hosts in the file
MAX_GROUPS = 64  # groups of hosts in the file


@dataclass(frozen=True)
class _Memory:
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By head and other host: bytes per second by address of the head."""
    groups: Sequence[Mapping[str, str]] = ()
    """The hosts of each `check` that chose a network: the address of each in it. The newest first."""


def fastest(rates: Mapping[str, float]) -> str:
    """The first address that is about as fast as the fastest. `rates`: bytes per second by address, not empty."""
    best = max(rates.values())
    return next(address for address, rate in rates.items() if rate >= AS_FAST * best)


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "bandwidths.json"


def _key(host: Host) -> str:
    return f"{host.address}:{host.port}"


def _pair(head: Host, other: Host) -> str:
    return f"{_key(head)} {_key(other)}"


def remember(
    head: Host,
    measured: Mapping[str, Mapping[str, float]],
    hosts: Mapping[str, Host],
    chosen: Mapping[str, str],
) -> None:
    """Write bandwidths to the file: {address of the head: {host: bytes per second}}. Never fails.

    `chosen`: {host: its address in the network that was chosen}; empty if they share only one.
    """
    by_host: dict[str, dict[str, float]] = {}
    for address, rates in measured.items():
        for name, rate in rates.items():
            by_host.setdefault(name, {})[address] = rate
    new = {_pair(head, hosts[name]): rates for name, rates in by_host.items()}
    known = _read()
    pairs = {**new, **{pair: rates for pair, rates in known.pairs.items() if pair not in new}}
    group = {_key(hosts[name]): address for name, address in chosen.items()}
    groups = [*([group] if group else []), *(each for each in known.groups if each.keys() != group.keys())]
    file = _file()
    content = {**dict(list(pairs.items())[:MAX_PAIRS]), "groups": groups[:MAX_GROUPS]}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(content))
        temporary.replace(file)


def prefer(head: Host, others: Sequence[Host]) -> str | None:
    """The address of the head in the network that `check` chose for these hosts, or for most of them.

    Hosts that were measured with others shared the head's bandwidth with them, so what each of them got varies. Only a
    network that is much faster wins over the choice for all. None: nothing is remembered of these hosts.
    """
    memory = _read()
    rates = _slowest(memory, head, others)
    chosen = _chosen(memory, head, others)
    if chosen and MUCH_FASTER * rates.get(chosen, 0.0) >= max(rates.values(), default=0.0):
        return chosen
    return fastest(rates) if rates else chosen


def chosen_before(head: Host, others: Iterable[Host]) -> str | None:
    """The address of the head in the network that the last `check` chose for these hosts, or for most of them."""
    return _chosen(_read(), head, others)


def _chosen(memory: _Memory, head: Host, others: Iterable[Host]) -> str | None:
    keys = {_key(other) for other in others}
    groups = [group for group in memory.groups if _key(head) in group and keys & group.keys()]
    group = max(groups, key=lambda group: len(keys & group.keys()), default=None)  # of equal ones, the newest
    return group[_key(head)] if group else None


def _slowest(memory: _Memory, head: Host, others: Iterable[Host]) -> dict[str, float]:
    """{address of the head: bytes per second of the slowest host that was measured}; {} if none was."""
    slowest: dict[str, float] = {}
    for other in others:
        for address, rate in memory.pairs.get(_pair(head, other), {}).items():
            slowest[address] = min(rate, slowest.get(address, rate))
    return slowest


def _read() -> _Memory:
    try:
        stored: Any = json.loads(_file().read_text())
    except (OSError, ValueError):
        return _Memory()
    if not isinstance(stored, dict):
        return _Memory()
    groups = stored.get("groups")
    return _Memory(
        {
            pair: {address: float(rate) for address, rate in rates.items() if isinstance(rate, (int, float))}
            for pair, rates in stored.items()
            if isinstance(rates, dict)
        },
        [
            {host: address for host, address in group.items() if isinstance(address, str)}
            for group in (groups if isinstance(groups, list) else [])
            if isinstance(group, dict)
        ],
    )
