"""Read a journal (recorder/journal.py) while it is being written, or later: pieces, lines and times. Writes nothing."""

import itertools
import os
import sys
from array import array
from bisect import bisect_right
from typing import Iterator, List, NamedTuple, Optional, Tuple

from ..recorder.journal import RECORD, Segment

BACKWARDS = 256 * 1024  # bytes a step, where lines are looked for from the end


class Piece(NamedTuple):
    offset: int
    at: int  # ns since 1970
    data: bytes


class Reader:
    """Reads one stream from an offset on, while it is being written or later."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def read(self, parts: List[Segment], limit: int) -> List[Piece]:
        """The next pieces, together at most `limit` bytes; [] when there is nothing new.

        `parts`: the stream's segments, looked up before this call. One that has a following one is complete.
        """
        for number, segment in enumerate(parts):
            last = number + 1 == len(parts)
            if last and self.offset >= segment.start + size(segment):
                break  # by far the most frequent case, and the cheapest to test
            if last or self.offset < parts[number + 1].start:
                pieces = _pieces(segment, max(self.offset, segment.start), limit)
                if pieces:
                    self.offset = pieces[-1].offset + len(pieces[-1].data)
                    return pieces
                if not last:
                    self.offset = parts[number + 1].start
        return []


def _pieces(segment: Segment, offset: int, limit: int) -> List[Piece]:
    pieces: List[Piece] = []
    try:
        with open(segment.path + ".idx", "rb") as index, open(segment.path + ".seg", "rb") as data:
            records = os.fstat(index.fileno()).st_size // RECORD.size
            position = _first_after(index.fileno(), records, offset)
            while limit > 0:
                if position < records:
                    end, at = RECORD.unpack(os.pread(index.fileno(), RECORD.size, position * RECORD.size))
                else:  # a record is still to come, or will never: its writer was killed, or the disk was full
                    written = os.fstat(data.fileno())
                    end, at = segment.start + written.st_size, written.st_mtime_ns
                piece = os.pread(data.fileno(), max(0, min(end - offset, limit)), offset - segment.start)
                if not piece:
                    break
                pieces.append(Piece(offset, at, piece))
                offset += len(piece)
                limit -= len(piece)
                position += offset >= end
    except FileNotFoundError:
        pass  # an empty one that its writer has just left for a later one
    return pieces


def _first_after(index: int, records: int, offset: int) -> int:
    """The first record whose end lies after `offset`."""
    low, high = 0, records
    while low < high:
        middle = (low + high) // 2
        if RECORD.unpack(os.pread(index, RECORD.size, middle * RECORD.size))[0] > offset:
            high = middle
        else:
            low = middle + 1
    return low


class Times:
    """When the bytes of a stream were written. Keeps the index of the segment that was asked for last."""

    def __init__(self) -> None:
        self._path = ""
        self._ends = self._ats = array("q")

    def at(self, parts: List[Segment], offset: int) -> int:
        """The time, in ns since 1970, of the piece that the byte at `offset` came in."""
        segment = parts[max(0, bisect_right(parts, (offset, "\U0010ffff")) - 1)]
        if segment.path != self._path or not self._ends or offset >= self._ends[-1]:
            self._path = segment.path
            self._ends, self._ats = index(segment)
        position = bisect_right(self._ends, offset)
        return self._ats[position] if position < len(self._ats) else _written_at(segment)


def index(segment: Segment) -> Tuple["array[int]", "array[int]"]:
    """The records of a segment: where its pieces end, and their times in ns since 1970."""
    try:
        with open(segment.path + ".idx", "rb") as file:
            data = file.read()
    except FileNotFoundError:
        data = b""
    values = array("q", data[: len(data) // RECORD.size * RECORD.size])
    if sys.byteorder == "big":
        values.byteswap()
    return values[0::2], values[1::2]


def _written_at(segment: Segment) -> int:
    """The time of bytes without a record: it is still to come, or will never (a killed writer, a full disk)."""
    try:
        return os.stat(segment.path + ".seg").st_mtime_ns
    except FileNotFoundError:
        return 0


def first_since(parts: List[Segment], at: int) -> int:
    """The offset of the first piece that was written at `at` (ns since 1970) or later; the stream's end if none was."""
    end = parts[0].start
    for segment in parts:
        ends, ats = index(segment)
        for position, written in enumerate(ats):
            if written >= at:
                return ends[position - 1] if position else segment.start
        recorded = ends[-1] if ends else segment.start
        end = segment.start + size(segment)
        if end > recorded and _written_at(segment) >= at:
            return recorded
    return end


def last_lines(parts: List[Segment], lines: int, end: Optional[int] = None) -> int:
    """The offset at which the last `lines` lines before `end` begin; None: of the whole stream.

    A last line without a newline is one too.
    """
    if end is None:
        end = max(segment.start + size(segment) for segment in parts)
    if lines == 0:
        return end
    starts = (start for start in _line_starts(parts, end) if start < end)
    return next(itertools.islice(starts, lines - 1, None), parts[0].start)


def line_start(parts: List[Segment], offset: int) -> int:
    """The beginning of the line that the byte at `offset` is of."""
    return next(_line_starts(parts, offset), parts[0].start)


def size(segment: Segment) -> int:
    try:
        return os.stat(segment.path + ".seg").st_size
    except FileNotFoundError:
        return 0  # an empty one that its writer has just left for a later one


def _line_starts(parts: List[Segment], offset: int) -> Iterator[int]:
    """The offsets behind a stream's newlines up to `offset`, the last first."""
    for segment in reversed(parts):
        try:
            file = open(segment.path + ".seg", "rb")  # noqa: SIM115  closed below
        except FileNotFoundError:
            continue  # an empty one that its writer has just left, or an old one that was trimmed
        with file:
            begin = min(os.fstat(file.fileno()).st_size, offset - segment.start)
            while begin > 0:
                count = min(BACKWARDS, begin)
                begin -= count
                chunk = os.pread(file.fileno(), count, begin)
                at = chunk.rfind(b"\n")
                while at >= 0:
                    yield segment.start + begin + at + 1
                    at = chunk.rfind(b"\n", 0, at)
