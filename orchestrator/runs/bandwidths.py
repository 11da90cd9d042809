"""Choose the fastest of the networks that hosts share, and remember what `check` measured for the next `up`.

The memory is a file of the controller. Losing it is harmless: `up` then goes by the speeds of the links.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..inventory.model import Host

AS_FAST = 0.8  # of the best bandwidth: within that, the order of the addresses decides
MOST = 4096  # pairs of hosts remembered


def fastest(rates: Mapping[str, float]) -> str:
    """Of the addresses that are about as fast as the fastest, the first. There must be one."""
    best = max(rates.values())
    return next(address for address, rate in rates.items() if rate >= AS_FAST * best)


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "bandwidths.json"


def _pair(head: Host, other: Host) -> str:
    return f"{head.address}:{head.port} {other.address}:{other.port}"


def remember(head: Host, measured: Mapping[str, Mapping[str, float]], hosts: Mapping[str, Host]) -> None:
    """`measured`: {address of the head: {host: bytes a second}}. Never fails."""
    by_host: dict[str, dict[str, float]] = {}
    for address, rates in measured.items():
        for name, rate in rates.items():
            by_host.setdefault(name, {})[address] = rate
    new = {_pair(head, hosts[name]): rates for name, rates in by_host.items()}
    known = {**new, **{pair: rates for pair, rates in _read().items() if pair not in new}}
    file = _file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(dict(list(known.items())[:MOST])))
        aside.replace(file)


def recall(head: Host, others: Iterable[Host]) -> dict[str, float]:
    """{address of the head: bytes a second of the slowest host that was measured}; {} if none was."""
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
