"""What a host says of signals that it sent to ranks, and of the snapshots that they have saved. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Attempt, Rank, StreamName
from .operation import Nothing, Operation


@dataclass(frozen=True)
class Signaled:
    """The answer to `signal`."""

    signal: int
    attempt: Attempt
    ranks: tuple[Rank, ...]
    """The ranks here that were asked for."""
    signaled: tuple[Rank, ...]
    uncaught: tuple[Rank, ...]
    """Ranks that have no handler for the signal, where that was asked for."""
    offsets: Mapping[StreamName, int]
    """Where the streams of the ranks ended before the signal."""


@dataclass(frozen=True)
class Saved:
    """The answer to `saved`."""

    line: str | None
    rank: Rank | None
    offsets: Mapping[StreamName, int]


@dataclass(frozen=True)
class Finishing:
    """The answer to `finish`."""

    can_save: bool
    """Whether the ranks have a handler for the signal."""


SIGNAL = Operation("signal", Signaled)
SAVED = Operation("saved", Saved)
FINISH = Operation("finish", Finishing)
HOLD = Operation("hold", Nothing)
