"""Choose the fastest network that hosts share, and remember the bandwidths that `check` measured for the next `up`.

They are in a file on this machine. Losing it is harmless: `up` then uses the speeds of the links.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..inventory.model import Host

AS_FAST = 0.8  # networks with this share of the best bandwidth count as equally fast
MAX_PAIRS = 4096  # pairs of hosts in the file


def fastest(rates: Mapping[str, float]) -> str:
    """The first address that is about as fast as the fastest. `rates`: bytes per second by address, not empty."""
    best = max(rates.values())
    return next(address for address, rate in rates.items() if rate >= AS_FAST * best)


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "bandwidths.json"


def _pair(head: Host, other: Host) -> str:
    return f"{head.address}:{head.port} {other.address}:{other.port}"


def remember(head: Host, measured: Mapping[str, Mapping[str, float]], hosts: Mapping[str, Host]) -> None:
    """Write bandwidths to the file: {address of the head: {host: bytes per second}}. Never fails."""
    by_host: dict[str, dict[str, float]] = {}
    for address, rates in measured.items():
        for name, rate in rates.items():
            by_host.setdefault(name, {})[address] = rate
    new = {_pair(head, hosts[name]): rates for name, rates in by_host.items()}
    known = {**new, **{pair: rates for pair, rates in _read().items() if pair not in new}}
    file = _file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(dict(list(known.items())[:MAX_PAIRS])))
        temporary.replace(file)


def recall(head: Host, others: Iterable[Host]) -> dict[str, float]:
    """{address of the head: bytes per second of the slowest host that was measured}; {} if none was."""
    known = _read()
    slowest: dict[str, float] = {}
    for other in others:
        for address, rate in known.get(_pair(head, other), {}).items():
            slowest[address] = min(rate, slowest.get(address, rate))
    return slowest


def _read() -> dict[str, dict[str, float]]:
    try:
        stored: Any = json.loads(_file().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {
        pair: {address: float(rate) for address, rate in rates.items() if isinstance(rate, (int, float))}
        for pair, rates in stored.items()
        if isinstance(rates, dict)
    }
