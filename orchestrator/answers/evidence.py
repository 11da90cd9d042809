"""What a host knows of a failure beyond the output of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Attempt, Rank, UnixTime
from .operation import Operation
from .runs import Failure


@dataclass(frozen=True)
class Finished:
    """A rank that ended well."""

    rank: Rank
    attempt: Attempt
    at: UnixTime


@dataclass(frozen=True)
class KernelLine:
    at: UnixTime
    text: str


@dataclass(frozen=True)
class Waits:
    """The collective that a rank waits in."""

    seq: int
    op: str
    sizes: str
    types: str
    state: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class DumpGroup:
    """What a rank had enqueued in a process group."""

    group: str
    ranks: str
    enqueued: int
    completed: int
    waits: Waits | None


@dataclass(frozen=True)
class DumpSummary:
    """Of a rank's flight-recorder dump."""

    rank: Rank | None
    groups: tuple[DumpGroup, ...]


@dataclass(frozen=True)
class Evidence:
    """`evidence`"""

    failures: tuple[Failure, ...]
    kernel: tuple[KernelLine, ...]
    oom_kills: int
    dumps: tuple[DumpSummary, ...]
    finished: tuple[Finished, ...] = ()


@dataclass(frozen=True)
class Paths:
    """`paths`"""

    paths: Mapping[str, str | None]
    """Why each cannot be read; None: it can."""


EVIDENCE = Operation("evidence", Evidence)
PATHS = Operation("paths", Paths)
