"""`attach`: stream a run's journal from given offsets, to its present end or until the run is over.

Reads files only, so it can never hold up a run. Pieces of all streams are sent in the order of their times.
"""

import heapq
import itertools
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import journal, runs, state, wire

# s between looks at files: after news, at most while nothing is new, and the factor from one look to the next
POLL, POLL_IDLE, SLOWER = 0.02, 0.1, 1.3
TAIL_CHUNK = 256 * 1024
READ_AHEAD = 64 * 1024  # bytes of one stream
MAX_PARTS = 4096  # in one frame: they are in its header, and a piece may be a single byte

Emit = Callable[[Dict[str, Any], bytes], None]


def follow(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Emit pieces of the journal; return how the run stands.

    `arguments`: run_id; offsets {stream: offset} to go on from; follow; tail (lines a stream, or null); sources (such
    as ["0", "agent"], or null for all); attempt (or null for all). An emitted header has streams (names) and parts
    [[index into streams, offset, length, time in ns], ...]; one with `live` says that all there was has been sent.
    """
    folder = state.run_folder(arguments["run_id"])
    if not os.path.isdir(folder):
        return {"error": "no such run here", "code": "no-such-run"}
    log = os.path.join(folder, "log")
    readers: Dict[journal.Stream, journal.Reader] = {}
    pause = POLL
    live = False
    while True:
        ended = not runs.guarded(folder)  # before reading: what was written last is read below
        segments = journal.segments(log)
        for stream in sorted(segments):
            if stream not in readers and _wanted(arguments, stream):
                readers[stream] = journal.Reader(_begin(arguments, stream, segments[stream]))
        if _send(readers, segments, emit):
            pause = POLL
            continue
        if ended or not arguments["follow"]:
            break
        if not live:
            live = True
            emit({"live": True}, b"")
        # files cannot be waited for without inotify, which has no place in the standard library
        time.sleep(pause)
        pause = min(POLL_IDLE, pause * SLOWER)
    offsets = {str(stream): reader.offset for stream, reader in readers.items()}
    return {"run": runs.describe(arguments["run_id"], folder), "ended": ended, "offsets": offsets}


def _wanted(arguments: Dict[str, Any], stream: journal.Stream) -> bool:
    return (arguments["sources"] is None or stream.source in arguments["sources"]) and arguments["attempt"] in (
        None,
        stream.attempt,
    )


def _begin(arguments: Dict[str, Any], stream: journal.Stream, parts: List[journal.Segment]) -> int:
    known: Optional[int] = arguments["offsets"].get(str(stream))
    if known is not None:
        return known
    return 0 if arguments["tail"] is None else _tail(parts, arguments["tail"])


def _send(
    readers: Dict[journal.Stream, journal.Reader], segments: Dict[journal.Stream, List[journal.Segment]], emit: Emit
) -> int:
    """One round: what there is now, merged by time. Returns the pieces sent."""
    ahead: List[Tuple[int, int, journal.Stream, List[journal.Piece]]] = []
    for number, (stream, reader) in enumerate(readers.items()):
        pieces = reader.read(segments.get(stream, []), READ_AHEAD)
        if pieces:
            heapq.heappush(ahead, (pieces[0].at, number, stream, pieces))
    batch = _Batch(emit)
    while ahead:
        _, number, stream, pieces = heapq.heappop(ahead)
        batch.add(stream, pieces.pop(0))
        if not pieces:
            pieces = readers[stream].read(segments.get(stream, []), READ_AHEAD)
        if pieces:
            heapq.heappush(ahead, (pieces[0].at, number, stream, pieces))
    batch.flush()
    return batch.count


class _Batch:
    """Pieces of several streams in one frame."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._streams: Dict[journal.Stream, int] = {}
        self._parts: List[List[int]] = []
        self._data: List[bytes] = []
        self._size = 0
        self.count = 0

    def add(self, stream: journal.Stream, piece: journal.Piece) -> None:
        if self._size + len(piece.data) > wire.MAX_PAYLOAD or len(self._parts) == MAX_PARTS:
            self.flush()
        index = self._streams.setdefault(stream, len(self._streams))
        self._parts.append([index, piece.offset, len(piece.data), piece.at])
        self._data.append(piece.data)
        self._size += len(piece.data)
        self.count += 1

    def flush(self) -> None:
        if self._parts:
            self._emit(
                {"streams": [str(stream) for stream in self._streams], "parts": self._parts}, b"".join(self._data)
            )
        self._streams, self._parts, self._data, self._size = {}, [], [], 0


def _tail(parts: List[journal.Segment], lines: int) -> int:
    """The offset at which the last `lines` lines of a stream begin. A last line without a newline is one too."""
    end = max(segment.start + _size(segment) for segment in parts)
    if lines == 0:
        return end
    starts = (start for segment in reversed(parts) for start in _line_starts(segment) if start < end)
    return next(itertools.islice(starts, lines - 1, None), parts[0].start)


def _size(segment: journal.Segment) -> int:
    try:
        return os.stat(segment.path + ".seg").st_size
    except FileNotFoundError:
        return 0  # an empty one that its writer has just left for a later one


def _line_starts(segment: journal.Segment) -> Iterator[int]:
    """The offsets behind a segment's newlines, the last first."""
    if not _size(segment):
        return
    with open(segment.path + ".seg", "rb") as file:
        begin = os.fstat(file.fileno()).st_size
        while begin > 0:
            count = min(TAIL_CHUNK, begin)
            begin -= count
            chunk = os.pread(file.fileno(), count, begin)
            at = chunk.rfind(b"\n")
            while at >= 0:
                yield segment.start + begin + at + 1
                at = chunk.rfind(b"\n", 0, at)
