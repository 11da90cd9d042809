"""The answers to `listen` and `dial`: the network between hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .facts import Lookup
from .fields import Address, HostName, Port
from .operation import Operation


@dataclass(frozen=True)
class Listening:
    """The answer to `listen`: the host waits for connections."""

    ports: tuple[Port, ...]
    """The first one is a port of the run, the others are random."""
    addresses: tuple[Address, ...]
    """Where other hosts may reach it, the preferred one first."""


@dataclass(frozen=True)
class Dialled:
    """The result of connecting to one address of another host."""

    host: HostName
    """The other host, as `address`."""
    address: Address
    source: Address | None
    """The local address of the connection; None: there was none."""
    interface: str | None
    """The local interface of the connection."""
    ports: Mapping[str, str | None]
    """By port: why the connection failed; None: it did not."""
    latency: float | None
    """The time of a round trip, seconds."""
    stalled: bool
    """Small packets arrived and large ones did not."""
    bandwidth: float | None
    """Bytes per second."""


@dataclass(frozen=True)
class DialReport:
    """The answer to `dial`."""

    results: tuple[Dialled, ...]
    """One for each requested address, in the order of the request."""
    names: Mapping[str, Lookup]
    """Look-ups of the names and addresses of the other hosts."""


LISTEN = Operation("listen", Listening)
DIAL = Operation("dial", DialReport)
