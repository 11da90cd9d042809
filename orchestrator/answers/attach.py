"""The answer to `attach`: pieces of the journal, and at the end the state of the run. Pure."""

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
    """The header of a DATA frame: the pieces of streams in its payload."""

    streams: tuple[StreamName, ...]
    """The streams that `parts` refers to."""
    parts: tuple[tuple[int, int, int, int], ...]
    """(index in `streams`, offset in the stream, length, time in ns since 1970), offset and length in bytes.

    A part of length 0 has no payload: a search has reached that time without a match.
    """


@dataclass(frozen=True)
class Live:
    """The header of the DATA frame after all recorded output: from now on, output comes as it is written."""

    live: bool
    offsets: Mapping[StreamName, int]
    """Bytes of each stream that were read."""


@dataclass(frozen=True)
class StrayOutputs:
    """Files that the script wrote next to its code instead of into its output folder."""

    folder: str
    """The folder of the code on the host."""
    count: int
    """How many files."""
    files: tuple[str, ...]
    """Some of them, relative to `folder`."""


@dataclass(frozen=True)
class Attached:
    """The answer to `attach`."""

    run: Part | None
    """The host's part of the run."""
    offsets: Mapping[StreamName, int] = field(default_factory=dict)
    """Bytes of each stream that were read."""
    cut: tuple[StreamName, ...] = ()
    """Streams with more output after the requested time."""
    stray_outputs: StrayOutputs | None = None


def _decode_pieces(header: Mapping[str, Any], payload: bytes) -> Pieces | Live:
    if "live" in header:
        return decode(Live, header, "attach")
    data = decode(Pieces, header, "attach")
    if any(min(part[:3]) < 0 or part[0] >= len(data.streams) for part in data.parts):
        raise MalformedAnswer("attach.parts: not [stream, offset, length, time]")
    if sum(part[2] for part in data.parts) != len(payload):
        raise MalformedAnswer("attach.parts: lengths differ from the payload")
    return data


ATTACH = Streaming("attach", Attached, _decode_pieces)
