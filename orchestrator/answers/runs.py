"""What a host says of its part of a run, and of the end of the whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .decode import NOT_NULL
from .fields import (
    AbsolutePath,
    Attempt,
    FinalState,
    Grace,
    HostName,
    NodeNumber,
    Nproc,
    Rank,
    RunId,
    RunName,
    Signal,
    State,
    TeamSize,
    Timestamp,
    UnixTime,
    VariableName,
)
from .ledger import EndedRun
from .operation import Operation

UNFINISHED = ("starting", "running", "suspect", "restarting", "waiting", "stopping")


@dataclass(frozen=True)
class Failure:
    """How a rank, the agent or all of a host's part failed."""

    at: UnixTime
    what: str
    rank: Rank | None
    exit_code: int | None = None
    signal: Signal | int | None = None
    pid: int | None = None
    said: str | None = None
    """The last line that it printed."""
    attempt: Attempt | None = field(default=None, metadata=NOT_NULL)
    gone: bool | None = None
    """Whether the host's guard was killed; None: no process told of this failure."""
    at_start: bool | None = None
    """Whether the attempt had just begun."""
    lost: bool = False
    """The host was not heard of any more."""
    stalled: bool = False
    """No rank printed a line for longer than `stall_timeout`."""


@dataclass(frozen=True, kw_only=True)
class FirstFailure(Failure):
    """The failure that ended the run, and where."""

    host: str
    node: NodeNumber | None
    """None: of no node, as all are silent."""


@dataclass(frozen=True)
class Verdict:
    """How the whole run ended, as one of its hosts knows it."""

    state: FinalState
    first_failure: FirstFailure | None = None
    stopped_by: str | None = None


Member = tuple[int, int, str]
"""A process of a run: pid, start time, command."""


@dataclass(frozen=True)
class Part:
    """What one host says of a run."""

    run_id: RunId
    name: RunName
    state: State
    attempt: Attempt
    started_at: Timestamp
    ended_at: UnixTime | None
    by: str
    script: str
    node: NodeNumber
    host: HostName
    hosts: tuple[HostName, ...]
    nprocs: tuple[Nproc, ...]
    team: TeamSize
    node_rank: NodeNumber | None
    """Of the newest attempt; None: a spare that waits."""
    first_rank: Rank | None
    """Of the newest attempt; None: a spare that waits."""
    nproc: Nproc
    ranks: Rank
    exit_code: int | None
    signal: Signal | int | None
    pid: int | None
    grace: Grace
    verdict: Verdict | None = field(default=None, metadata=NOT_NULL)
    outputs: bool = False
    members: tuple[Member, ...] = ()
    """Where they were asked for."""
    not_notified: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[VariableName, ...] | None = field(default=None, metadata=NOT_NULL)
    """Names of the run's secrets; None: unknown."""
    shared_output: AbsolutePath | None = None

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED


@dataclass(frozen=True)
class RunList:
    """`list`"""

    runs: tuple[Part, ...]
    ledger: tuple[EndedRun, ...] = ()
    """Of the runs that ended last, the newest last."""


LIST = Operation("list", RunList)
