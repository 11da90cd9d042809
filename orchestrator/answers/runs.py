"""The answer to `list`: a host's parts of runs, and how the runs ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .decode import NOT_NULL
from .fields import (
    UNFINISHED,
    AbsolutePath,
    Attempt,
    Epoch,
    FinalState,
    Grace,
    HostName,
    Lease,
    NodeNumber,
    Nproc,
    ProblemCode,
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
from .queued import WaitingRun


@dataclass(frozen=True)
class Failure:
    """A failure of a rank, the agent or the whole host."""

    at: UnixTime
    what: str
    """In words, such as `exit code 1`."""
    rank: Rank | None
    """None: the agent or the host."""
    exit_code: int | None = None
    signal: Signal | int | None = None
    pid: int | None = None
    said: str | None = None
    """The last line that the rank printed."""
    attempt: Attempt | None = field(default=None, metadata=NOT_NULL)
    gone: bool | None = None
    """Whether the host's guard was killed; None: the failure was not reported by a process."""
    at_start: bool | None = None
    """Whether the attempt had just started."""
    lost: bool = False
    """The host became silent."""
    stalled: bool = False
    """No rank printed a line for longer than `stall_timeout`."""
    requested: bool = False
    """A person had sent the signal that killed the rank, with `ddp-orch signal`."""

    def __str__(self) -> str:
        return f"{self.what} ({self.said})" if self.said else self.what


@dataclass(frozen=True, kw_only=True)
class FirstFailure(Failure):
    """The failure that ended the run, and its host."""

    host: str
    node: NodeNumber | None
    """None: all nodes became silent."""


@dataclass(frozen=True)
class Verdict:
    """How the run ended, as one of its hosts knows."""

    state: FinalState
    first_failure: FirstFailure | None = None
    stopped_by: str | None = None
    """user@machine, or what stopped it."""
    left: bool = False
    """Whether it ended on this host only, which was drained."""
    no_restart_reason: str | None = None
    """Why no attempt followed the last one; None: it was not a failure, or the host cannot tell."""


@dataclass(frozen=True)
class Size:
    """What a run takes on the disks of a host, in bytes."""

    record: int
    """Its logs, records and copy of the code."""
    outputs: int | None
    """Its output folder, which all runs of its name share; None: there is none, or it is on a disk of all hosts."""


Member = tuple[int, int, str]
"""A process of a run: (pid, start time in clock ticks since boot, command)."""


@dataclass(frozen=True)
class Waits:
    """What a run waits for before its next attempt."""

    hosts: tuple[HostName, ...]
    until: UnixTime
    no_majority: bool = False
    """The hosts that answer are none, and elect no head, so no host can be added or drained."""


@dataclass(frozen=True)
class Part:
    """A host's part of a run."""

    run_id: RunId
    name: RunName
    state: State
    attempt: Attempt
    """The newest one, from 1."""
    started_at: Timestamp
    """When the run was created."""
    ended_at: UnixTime | None
    by: str
    """Who started the run, as user@machine."""
    script: str
    """The script, or `-m MODULE`."""
    node: NodeNumber
    """The host's index in `hosts`."""
    host: HostName
    """The host's name in the inventory that the run was started with, as in `hosts`."""
    hosts: tuple[HostName, ...]
    """All hosts of the run, by node number; spares last."""
    nprocs: tuple[Nproc, ...]
    """Ranks per host, by node number."""
    team: TeamSize
    """Number of nodes in the first attempt: all but the spares and the witness."""
    node_rank: NodeNumber | None
    """In the newest attempt; None: a spare that waits."""
    first_rank: Rank | None
    """The host's first rank in the newest attempt; None: a spare that waits."""
    nproc: Nproc
    """The host's number of ranks."""
    ranks: Rank
    """The most ranks that an attempt of the run may have."""
    exit_code: int | None
    """The exit code of the first failure in the newest attempt, as `signal`; 0: success; None: neither."""
    signal: Signal | int | None
    pid: int | None
    """The pid of the guard."""
    grace: Grace
    """Between TERM and KILL when the run is stopped."""
    witness: HostName | None = None
    """That of `hosts` which only votes."""
    lease: Lease = 8.0
    """Seconds of silence until a host counts as lost."""
    verdict: Verdict | None = field(default=None, metadata=NOT_NULL)
    outputs: bool = False
    """Whether the output folder has files."""
    head: NodeNumber = 0
    """The node that leads, as this host knows."""
    epoch: Epoch = 0
    """In which it was elected; 0: the hosts of this run elect no head."""
    members: tuple[Member, ...] = ()
    """The processes of the run, if they were requested."""
    size: Size | None = field(default=None, metadata=NOT_NULL)
    """If it was requested."""
    not_notified: Mapping[str, str] = field(default_factory=dict)
    """Why notifications failed, by `webhook`, `mail` or `command`."""
    had_outputs: tuple[HostName, ...] = ()
    """Those of `hosts` whose output folder had files before the run, which are not on a disk of all hosts."""
    secrets: tuple[VariableName, ...] | None = field(default=None, metadata=NOT_NULL)
    """Names of the run's secrets; None: unknown."""
    shared_output: AbsolutePath | None = None
    """The output folder, if it is on a disk that all hosts share (run.output)."""
    resume: Literal["none", "head", "newest", "union"] = "none"
    """Whose outputs all hosts get before an attempt (run.resume)."""
    autostart: Literal["none", "cron", "systemd"] = "none"
    """What starts a guard of the run again when the host is booted (run.autostart)."""
    rejoins: bool = False
    """Whether the host has no guard of the run, which is not over, and will start one when it is booted."""
    waits: Waits | None = None
    """What the run waits for, if it does and this host knows."""
    suspects: tuple[HostName, ...] = ()
    """Hosts that are silent, but not lost yet, as the head knows."""
    unfit: Mapping[HostName, tuple[ProblemCode, ...]] = field(default_factory=dict)
    """The problems of hosts without ranks, for which the newest attempt left them out, as the head knows."""
    drained: tuple[HostName, ...] = ()
    """Hosts that have left the run, as this host knows. If they were off, they do not know it themselves."""

    @property
    def state_here(self) -> str:
        """Of the host: the head's `state` is that of the whole run, which is suspect if another host is silent."""
        return "running" if self.state == "suspect" and self.suspects else self.state

    @property
    def is_witness(self) -> bool:
        return self.host == self.witness

    @property
    def lacks_guard(self) -> bool:
        """Whether the host was restarted, or its guard killed, while the run was not over there."""
        return self.state == "lost" and self.verdict is None

    @property
    def has_left(self) -> bool:
        """Whether the host was drained. The run may go on without it."""
        return self.verdict is not None and self.verdict.left

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED


@dataclass(frozen=True)
class WarmPython:
    """A process that has imported the modules of `run.preload`, and waits for another run."""

    pid: int
    python: str
    modules: tuple[str, ...]
    age: float
    """Seconds since the run that it served has ended."""
    left: float
    """Seconds until it ends."""
    memory: int
    """Bytes."""


@dataclass(frozen=True)
class OtherUsersRun:
    """A run of another user."""

    run_id: RunId
    user: str
    """On the host."""


@dataclass(frozen=True)
class RunList:
    """The answer to `list`."""

    runs: tuple[Part, ...]
    ledger: tuple[EndedRun, ...] = ()
    """The runs that ended last on this host, the newest last."""
    warm: tuple[WarmPython, ...] = ()
    queued: tuple[WaitingRun, ...] = ()
    """Runs that wait for their turn on this host (`up --queue`), the next one first."""
    others: tuple[OtherUsersRun, ...] = ()
    """Runs of other users, if they were requested."""


LIST = Operation("list", RunList)
