"""What `attach` gives: pieces of the journal, and in the end how the run stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .fields import StreamName
from .runs import Part


@dataclass(frozen=True)
class Pieces:
    """The header of DATA: of which pieces its payload is made."""

    streams: tuple[StreamName, ...]
    parts: tuple[tuple[int, int, int, int], ...]
    """Which stream, offset in it, length, time in ns since 1970. Without a length: a search has come so far."""


@dataclass(frozen=True)
class Live:
    """The header of DATA that says: all that there was has been sent."""

    live: bool
    offsets: Mapping[StreamName, int]


@dataclass(frozen=True)
class StrayOutputs:
    """Files that the script wrote beside its code."""

    folder: str
    count: int
    files: tuple[str, ...]
    """Some of them."""


@dataclass(frozen=True)
class Attached:
    """`attach`"""

    run: Part | None
    ended: bool = False
    offsets: Mapping[StreamName, int] = field(default_factory=dict)
    cut: tuple[StreamName, ...] = ()
    """Streams that go on after the time that was asked for."""
    stray_outputs: StrayOutputs | None = None
