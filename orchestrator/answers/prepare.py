"""The answers of a launch: `prepare`, `start`, `abort`, and `notify`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Address, Port, RunId
from .operation import Nothing, Operation


@dataclass(frozen=True)
class Carried:
    """What the run that this one continues had written beside its code."""

    count: int
    files: tuple[str, ...]
    """Some of them."""
    snapshot: str | None
    """One that is named like a snapshot."""


@dataclass(frozen=True)
class LeftBehind:
    """A snapshot beside the code of an earlier run of the same name, which this run does not get."""

    run_id: RunId
    file: str
    hidden: bool = False
    """The code of this run has another file of that name."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What every host answers to `prepare`."""

    beside: tuple[RunId, ...]
    """Other runs that use the same CPUs."""
    resumes: bool
    """The output folder already has files."""
    carried: Carried | None = None
    """None: nothing."""
    left_behind: LeftBehind | None = None
    resumed_with: str | None = None
    """`run.resume` of the newest run of the same name; None: there is none."""


@dataclass(frozen=True, kw_only=True)
class PreparedHead(Prepared):
    """The answer to `prepare` of the head."""

    addresses: tuple[Address, ...]
    """Where other hosts may reach it, the preferred one first."""
    rdzv_port: Port
    link_port: Port | None
    """Where it waits for the recorders of the other nodes; None: the run has one node."""


@dataclass(frozen=True, kw_only=True)
class PreparedNode(Prepared):
    """The answer to `prepare` of any other node."""

    reachable: tuple[Address, ...]
    """The addresses of the head that it reaches; it connects to the first one."""
    interface: str | None
    """The interface towards that address."""


@dataclass(frozen=True)
class NotifyProblems:
    """The answer to `notify`."""

    problems: Mapping[str, str]
    """Why a notification failed, by `webhook`, `mail` or `command`; only those that failed."""


@dataclass(frozen=True)
class Aborted:
    """The answer to `abort`."""

    stopped_by: str | None
    """Who stopped the run while it was prepared; None: nobody."""


UNPACK = Operation("unpack", Nothing)
PREPARE_HEAD = Operation("prepare", PreparedHead)
PREPARE_NODE = Operation("prepare", PreparedNode)
START = Operation("start", Nothing)
ABORT = Operation("abort", Aborted)
NOTIFY = Operation("notify", NotifyProblems)
