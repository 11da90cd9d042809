"""What a host says once a run is prepared on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Address, Port, RunId
from .files import Unfetched
from .operation import Nothing, Operation


@dataclass(frozen=True, kw_only=True)
class Prepared(Unfetched):
    """What every host says."""

    beside: tuple[RunId, ...]
    """Other runs on the same CPUs."""
    resumes: bool
    """Its output folder has files already."""


@dataclass(frozen=True, kw_only=True)
class PreparedHead(Prepared):
    """`prepare` of the head"""

    addresses: tuple[Address, ...]
    rdzv_port: Port
    link_port: Port | None
    """None: the run has one node."""


@dataclass(frozen=True, kw_only=True)
class PreparedNode(Prepared):
    """`prepare` of any other node"""

    reachable: tuple[Address, ...]
    """Those of the head's addresses."""
    interface: str | None
    """By which the first of them is reached."""


@dataclass(frozen=True)
class NotifyProblems:
    """`notify`"""

    problems: Mapping[str, str]
    """Why it failed, by `webhook` or `command`."""


@dataclass(frozen=True)
class Aborted:
    """`abort`"""

    stopped_by: str | None
    """Who has stopped the run while it was being prepared."""


UNPACK = Operation("unpack", Nothing)
PREPARE_HEAD = Operation("prepare", PreparedHead)
PREPARE_NODE = Operation("prepare", PreparedNode)
START = Operation("start", Nothing)
ABORT = Operation("abort", Aborted)
NOTIFY = Operation("notify", NotifyProblems)
