"""The answers to `evidence` and `paths`: what a host knows about a failure beyond the output of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Attempt, Rank, UnixTime
from .operation import Operation
from .runs import Failure


@dataclass(frozen=True)
class Finished:
    """A rank that ended with exit code 0."""

    rank: Rank
    attempt: Attempt
    at: UnixTime
    """When it ended."""


@dataclass(frozen=True)
class Dropped:
    """Output that a full disk has kept out of the log."""

    attempt: Attempt
    writer: str
    """Such as `rank 1` or `agent`."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class KernelLine:
    """A message of the host's kernel."""

    at: UnixTime
    text: str


@dataclass(frozen=True)
class Waits:
    """The collective that a rank waits in, from a dump of torch's flight recorder."""

    seq: int
    """Its number in the process group."""
    op: str
    """Its name, such as `all_reduce`."""
    sizes: str
    """The sizes of its inputs, as text."""
    types: str
    """The types of its inputs, as text."""
    state: str
    """`scheduled` or `started`."""
    frames: tuple[str, ...]
    """`FILE:LINE in FUNCTION`: the innermost frames outside of torch."""


@dataclass(frozen=True)
class DumpGroup:
    """The collectives of a rank in one process group."""

    group: str
    ranks: str
    """The ranks of the group, as text."""
    enqueued: int
    """The number of the last collective that was enqueued."""
    waits: Waits | None
    """The first collective that was not completed."""


@dataclass(frozen=True)
class DumpSummary:
    """A summary of a rank's flight-recorder dump."""

    rank: Rank | None
    """None: the dump does not say."""
    groups: tuple[DumpGroup, ...]


@dataclass(frozen=True)
class Evidence:
    """The answer to `evidence`."""

    failures: tuple[Failure, ...]
    kernel: tuple[KernelLine, ...]
    """Kernel messages since the run started that may explain a failure."""
    oom_kills: int
    """Kills at the memory limit of the user's control group; not all of them need be of this run."""
    dumps: tuple[DumpSummary, ...]
    finished: tuple[Finished, ...] = ()
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True)
class Paths:
    """The answer to `paths`."""

    paths: Mapping[str, str | None]
    """By path: why it cannot be read; None: it can."""


EVIDENCE = Operation("evidence", Evidence)
PATHS = Operation("paths", Paths)
