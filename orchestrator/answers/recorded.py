"""What a host keeps of a run for `report`, and what it measures for `top`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .decode import AnyFloat
from .fields import Attempt, HostName, NodeNumber, Rank, UnixTime
from .operation import Operation
from .runs import Failure, Part


def _has_some(used_and_all: tuple[float, float]) -> bool:
    return used_and_all[1] > 0


Way = Literal["received", "sent"]


@dataclass(frozen=True)
class Nic:
    name: str
    received: float
    sent: float
    """Bytes since the host was started."""
    mbit: float | None

    def counted(self, way: Way) -> float:
        return self.received if way == "received" else self.sent


@dataclass(frozen=True)
class GpuUsage:
    """None: the driver does not say."""

    busy: float | None
    """Percent."""
    used: float | None
    total: float | None
    """Bytes of memory."""
    watts: float | None
    celsius: float | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How busy a host is."""

    cores: int | None
    cpu: tuple[float, float]
    """Busy and whole CPU time since the host was started."""
    memory: Annotated[tuple[float, float], _has_some]
    """Used and all, in bytes."""
    nics: tuple[Nic, ...]
    gpus: tuple[GpuUsage, ...]


@dataclass(frozen=True)
class RankSample:
    """The newest of one rank's output."""

    rank: Rank
    last: str
    at: float
    """Unix seconds of the last line; 0: there is none."""
    figures: Mapping[str, AnyFloat]
    """step, loss, rate, step_time, as far as they are printed."""


@dataclass(frozen=True, kw_only=True)
class Sample(Usage):
    """`sample`"""

    clock: float
    """Unix seconds."""
    run: Part | None
    ranks: tuple[RankSample, ...]


@dataclass(frozen=True, kw_only=True)
class UsageAt(Usage):
    at: float
    """Unix seconds."""


@dataclass(frozen=True)
class NodeOfSpec:
    host: HostName


@dataclass(frozen=True)
class Spec:
    """With what a run was started on a host. What is `Any` is shown as it is."""

    nodes: tuple[NodeOfSpec, ...]
    by: str
    python: str
    env: Mapping[str, str]
    command: tuple[str, ...]
    agent_argv: tuple[str, ...] | None
    inventory: Any = None
    workdir: Any = None
    code: Any = None
    setup: Any = None
    grace: Any = None
    max_restarts: Any = None
    min_nodes: Any = None
    stall_timeout: Any = None
    interface: Any = None
    ports: Any = None


@dataclass(frozen=True)
class End:
    at: UnixTime


# --- the events of the head's gang


@dataclass(frozen=True)
class At:
    at: UnixTime


@dataclass(frozen=True)
class Started:
    event: Literal["StartRequested", "PortFound"]
    fields: At


@dataclass(frozen=True)
class StopFields:
    at: UnixTime
    by: str


@dataclass(frozen=True)
class Stopped:
    event: Literal["StopRequested"]
    fields: StopFields


@dataclass(frozen=True)
class FailedFields:
    at: UnixTime
    node: NodeNumber
    failure: Failure


@dataclass(frozen=True)
class Failed:
    event: Literal["Failed"]
    fields: FailedFields


@dataclass(frozen=True)
class ExitedFields:
    at: UnixTime
    node: NodeNumber
    attempt: Attempt
    ok: bool


@dataclass(frozen=True)
class Exited:
    event: Literal["Exited"]
    fields: ExitedFields


@dataclass(frozen=True)
class LostFields:
    at: UnixTime
    node: NodeNumber


@dataclass(frozen=True)
class Lost:
    event: Literal["Lost"]
    fields: LostFields


@dataclass(frozen=True)
class StalledFields:
    at: UnixTime
    quiet: float
    """Seconds."""


@dataclass(frozen=True)
class Stalled:
    event: Literal["Stalled"]
    fields: StalledFields


_KNOWN = "StartRequested|PortFound|StopRequested|Failed|Exited|Lost|Stalled"


@dataclass(frozen=True)
class OtherEvent:
    """One that no report tells of."""

    event: Annotated[str, re.compile(rf"(?!({_KNOWN})$)[A-Za-z]{{1,40}}").fullmatch]


Event = OtherEvent | Started | Stopped | Failed | Exited | Lost | Stalled


@dataclass(frozen=True)
class Record:
    """`record`"""

    run: Part | None
    spec: Spec | None
    exit: End | None
    events: tuple[Event, ...]
    """Of the head only."""
    samples: tuple[UsageAt, ...]


SAMPLE = Operation("sample", Sample)
RECORD = Operation("record", Record)
