"""The answers to `record` (for `report`) and `sample` (for `top`). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .decode import AnyFloat
from .fields import Attempt, HostName, NodeNumber, ProblemCode, Rank, UnixTime
from .operation import Operation
from .runs import Failure, Part


def _has_some(used_and_all: tuple[float, float]) -> bool:
    return used_and_all[1] > 0


Way = Literal["received", "sent"]


@dataclass(frozen=True)
class Nic:
    """A network interface."""

    name: str
    received: float
    """Bytes since the host booted, as `sent`."""
    sent: float
    mbit: float | None
    """Speed of the link, Mbit/s; None: unknown."""

    def counted(self, way: Way) -> float:
        return self.received if way == "received" else self.sent


@dataclass(frozen=True)
class GpuUsage:
    """How busy a GPU is; None: the driver does not report it."""

    busy: float | None
    """Percent."""
    used: float | None
    """Bytes of memory, as `total`."""
    total: float | None
    watts: float | None
    celsius: float | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How busy a host is."""

    cores: int | None
    cpu: tuple[float, float]
    """CPU time since the host booted, in one unit: busy, and total."""
    memory: Annotated[tuple[float, float], _has_some]
    """Bytes: used, and total."""
    nics: tuple[Nic, ...]
    gpus: tuple[GpuUsage, ...]
    disk: tuple[float, float] | None = None
    """Bytes that all disks have read and written since the host booted; None: unknown."""


@dataclass(frozen=True)
class RankSample:
    """The newest output of a rank."""

    rank: Rank
    last: str
    """Its last line."""
    at: float
    """Unix time of that line, seconds; 0: there is none."""
    figures: Mapping[str, AnyFloat]
    """The last printed step, loss, rate (samples or tokens per second) and step_time (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Sample(Usage):
    """The answer to `sample`."""

    clock: float
    """Unix time, seconds."""
    run: Part | None
    """The host's part of the run."""
    ranks: tuple[RankSample, ...]


@dataclass(frozen=True, kw_only=True)
class UsageAt(Usage):
    """A recorded usage."""

    at: float
    """Unix time, seconds."""


@dataclass(frozen=True)
class NodeOfSpec:
    """A node in the specification of a run."""

    host: HostName
    spare: bool = False
    witness: bool = False


@dataclass(frozen=True)
class Spec:
    """The specification with which a run was started on a host (node_spec.spec). Values of type Any are only shown."""

    nodes: tuple[NodeOfSpec, ...]
    by: str
    python: str
    env: Mapping[str, str]
    command: tuple[str, ...]
    agent_argv: tuple[str, ...] | None
    launcher: Any = None
    inventory: Any = None
    workdir: Any = None
    code: Any = None
    setup: Any = None
    grace: Any = None
    max_restarts: Any = None
    min_nodes: Any = None
    head_lost: Any = None
    rejoin_timeout: Any = None
    stall_timeout: Any = None
    interface: Any = None
    ports: Any = None
    versions: Any = None
    """Of python, torch, CUDA, the driver and other packages, by name; None: the run was started by an older version."""


@dataclass(frozen=True)
class End:
    """The end of a run on a host."""

    at: UnixTime


# --- events of the gang, as the head records them


@dataclass(frozen=True)
class At:
    """The fields of events that have only a time."""

    at: UnixTime


@dataclass(frozen=True)
class AttemptOrdered:
    event: Literal["StartRequested", "PortFound"]
    fields: At


@dataclass(frozen=True)
class StopFields:
    at: UnixTime
    by: str


@dataclass(frozen=True)
class StopRequested:
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
class StartedFields:
    at: UnixTime
    node: NodeNumber
    attempt: Attempt


@dataclass(frozen=True)
class Started:
    """The ranks of an attempt run on a host."""

    event: Literal["Started"]
    fields: StartedFields


@dataclass(frozen=True)
class NodeFields:
    at: UnixTime
    node: NodeNumber
    heard_at: float | None = None
    """Since when a lost node was silent, or the lost head."""
    resigned: bool = False
    """The head before the one that was elected had no majority, and was not lost."""
    silent: tuple[NodeNumber, ...] = ()
    """Those that did not answer it then, as far as known."""


@dataclass(frozen=True)
class NodeEvent:
    """A node was lost, or its host restarted, or it was elected."""

    event: Literal["Lost", "Restarted", "Elected"]
    fields: NodeFields


@dataclass(frozen=True)
class NoMajorityFields:
    at: UnixTime
    silent: tuple[NodeNumber, ...] = ()


@dataclass(frozen=True)
class NoMajority:
    """The head leads again, to which these nodes did not answer."""

    event: Literal["NoMajority"]
    fields: NoMajorityFields


@dataclass(frozen=True)
class DrainFields:
    at: UnixTime
    node: NodeNumber
    by: str


@dataclass(frozen=True)
class Drain:
    event: Literal["Drain"]
    fields: DrainFields


@dataclass(frozen=True)
class AddedFields:
    at: UnixTime
    host: HostName
    by: str


@dataclass(frozen=True)
class Added:
    event: Literal["Added"]
    fields: AddedFields


@dataclass(frozen=True)
class StalledFields:
    at: UnixTime
    quiet: float
    """Seconds without a line from any rank."""


@dataclass(frozen=True)
class Stalled:
    event: Literal["Stalled"]
    fields: StalledFields


@dataclass(frozen=True)
class AgreedFields:
    at: UnixTime
    note: str = ""
    """What a reader wants to know about the files that the ranks get; "" if nothing."""


@dataclass(frozen=True)
class Agreed:
    """The output folders of the hosts are equal (`run.resume`). Or only a note."""

    event: Literal["Agreed", "Noted"]
    fields: AgreedFields


@dataclass(frozen=True)
class Problem:
    """Of a host, as `check` finds it."""

    code: ProblemCode
    text: str


@dataclass(frozen=True)
class CheckedFields:
    at: UnixTime
    node: NodeNumber
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Checked:
    """A host has answered whether another attempt can run there."""

    event: Literal["Checked"]
    fields: CheckedFields


_KNOWN = (
    "StartRequested|PortFound|Started|StopRequested|Failed|Exited|Lost|Restarted|Drain|Added|Stalled|Agreed|Elected|"
    "NoMajority|Checked|Noted"
)


@dataclass(frozen=True)
class OtherEvent:
    """An event that reports do not show."""

    event: Annotated[str, re.compile(rf"(?!({_KNOWN})$)[A-Za-z]{{1,40}}").fullmatch]


Event = (
    OtherEvent
    | AttemptOrdered
    | Started
    | StopRequested
    | Failed
    | Exited
    | NodeEvent
    | NoMajority
    | Drain
    | Added
    | Stalled
    | Agreed
    | Checked
)


@dataclass(frozen=True)
class Wait:
    """Since when a host has waited for which hosts, at most until a time. None: its wait has ended."""

    at: UnixTime
    hosts: tuple[HostName, ...]
    until: UnixTime | None


@dataclass(frozen=True)
class Record:
    """The answer to `record`."""

    run: Part | None
    """The host's part of the run."""
    spec: Spec | None
    exit: End | None
    events: tuple[Event, ...]
    """Only on the head, unless the hosts can elect another one."""
    samples: tuple[UsageAt, ...]
    waits: tuple[Wait, ...] = ()
    folder: str | None = None
    """The folder of the run on the host; its output is in `log`."""
    output: str | None = None
    """$DDP_ORCH_OUTPUT_DIR on the host."""


SAMPLE = Operation("sample", Sample)
RECORD = Operation("record", Record)
