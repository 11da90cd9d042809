"""What `attach` gives: pieces of the journal, and in the end how the run stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .decode import MalformedAnswer, decode
from .fields import StreamName
from .operation import Streaming
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


def _decode_pieces(header: Mapping[str, Any], payload: bytes) -> Pieces | Live:
    if "live" in header:
        return decode(Live, header, "attach")
    data = decode(Pieces, header, "attach")
    if any(min(part[:3]) < 0 or part[0] >= len(data.streams) for part in data.parts):
        raise MalformedAnswer("attach.parts: not [stream, offset, length, time]")
    if sum(part[2] for part in data.parts) != len(payload):
        raise MalformedAnswer("attach.parts: not as long as what came")
    return data


ATTACH = Streaming("attach", Attached, _decode_pieces)
