"""`attach`: stream a run's journal from given offsets, to its present end or until the run is over.

Reads files only, so it can never hold up a run. Pieces of all streams are sent in the order of their times.
"""

import heapq
import os
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import journal, runs, state, wire

POLL = 0.05  # s between looks at files that have nothing new
POLL_IDLE = 0.5  # s, after a while without news
IDLE_AFTER = 10.0  # s
TAIL_CHUNK = 256 * 1024
READ_AHEAD = 64 * 1024  # bytes of one stream

Emit = Callable[[Dict[str, Any], bytes], None]


def follow(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Emit pieces of the journal; return how the run stands.

    `arguments`: run_id; offsets {stream: offset} to go on from; follow; tail (lines a stream, or null); sources (such as
    ["0", "agent"], or null for all); attempt (or null for all). An emitted header has streams (names) and parts [[index into streams, offset, length,
    time in ns], ...]; one with `live` says that all there was has been sent.
    """
    folder = state.run_folder(arguments["run_id"])
    if not os.path.isdir(folder):
        return {"error": "no such run here", "code": "no-such-run"}
    log = os.path.join(folder, "log")
    readers: Dict[journal.Stream, journal.Reader] = {}
    quiet_since = time.monotonic()
    live = False
    while True:
        ended = not runs.guarded(folder)  # before reading: what was written last is read below
        for stream in sorted(journal.segments(log)):
            if stream not in readers and _wanted(arguments, stream):
                readers[stream] = journal.Reader(log, stream, _begin(arguments, log, stream))
        if _send(readers, emit):
            quiet_since = time.monotonic()
            continue
        if ended or not arguments["follow"]:
            break
        if not live:
            live = True
            emit({"live": True}, b"")
        # files cannot be waited for without inotify, which has no place in the standard library
        time.sleep(POLL if time.monotonic() - quiet_since < IDLE_AFTER else POLL_IDLE)
    offsets = {str(stream): reader.offset for stream, reader in readers.items()}
    return {"run": runs.describe(arguments["run_id"], folder), "ended": ended, "offsets": offsets}


def _wanted(arguments: Dict[str, Any], stream: journal.Stream) -> bool:
    return (arguments["sources"] is None or stream.source in arguments["sources"]) and arguments["attempt"] in (
        None,
        stream.attempt,
    )


def _begin(arguments: Dict[str, Any], log: str, stream: journal.Stream) -> int:
    known: Optional[int] = arguments["offsets"].get(str(stream))
    if known is not None:
        return known
    return 0 if arguments["tail"] is None else _tail(log, stream, arguments["tail"])


def _send(readers: Dict[journal.Stream, journal.Reader], emit: Emit) -> int:
    """One round: what there is now, merged by time. Returns the pieces sent."""
    ahead: List[Tuple[int, int, journal.Stream, List[journal.Piece]]] = []
    for number, (stream, reader) in enumerate(readers.items()):
        pieces = reader.read(READ_AHEAD)
        if pieces:
            heapq.heappush(ahead, (pieces[0].at, number, stream, pieces))
    batch = _Batch(emit)
    while ahead:
        _, number, stream, pieces = heapq.heappop(ahead)
        batch.add(stream, pieces.pop(0))
        if not pieces:
            pieces = readers[stream].read(READ_AHEAD)
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
        if self._size + len(piece.data) > wire.MAX_PAYLOAD:
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


def _tail(log: str, stream: journal.Stream, lines: int) -> int:
    """The offset at which the last `lines` lines of a stream begin."""
    parts = journal.segments(log)[stream]
    end = journal.size(log, stream)
    wanted = lines + 1  # the newline that ends the last line does not begin one
    for segment in reversed(parts):
        with open(segment.path + ".seg", "rb") as file:
            position = os.fstat(file.fileno()).st_size
            if position and segment.start + position == end:
                file.seek(position - 1)
                wanted -= file.read(1) != b"\n"
            while position > 0:
                begin = max(0, position - TAIL_CHUNK)
                file.seek(begin)
                chunk = file.read(position - begin)
                found = chunk.count(b"\n")
                if found >= wanted:
                    at = len(chunk)
                    for _ in range(wanted):
                        at = chunk.rindex(b"\n", 0, at)
                    return segment.start + begin + at + 1
                wanted -= found
                position = begin
    return parts[0].start
