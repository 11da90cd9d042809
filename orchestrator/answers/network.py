"""What hosts say of the network between them, as they tried it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .facts import Lookup
from .fields import Address, HostName, Port
from .operation import Operation


@dataclass(frozen=True)
class Listening:
    """`listen`"""

    ports: tuple[Port, ...]
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class Dialled:
    """What became of dialling one address of another host."""

    host: HostName
    address: Address
    source: Address | None
    interface: str | None
    ports: Mapping[str, str | None]
    """Why a port was not reached; None: it was."""
    latency: float | None
    """s"""
    stalled: bool
    """Small packets came through and large ones did not."""
    bandwidth: float | None
    """bytes a second"""


@dataclass(frozen=True)
class DialReport:
    """`dial`"""

    results: tuple[Dialled, ...]
    names: Mapping[str, Lookup]


LISTEN = Operation("listen", Listening)
DIAL = Operation("dial", DialReport)
