"""`attach`: stream a run's journal from given offsets, to its present end or until the run is over.

Reads files only, so it can never hold up a run. Pieces of all streams are sent in the order of their times.
"""

import heapq
import os
import re
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..host import state
from ..recorder import journal
from . import journal_reader, outputs, runs, search, wire

# s between looks at files: after news, at most while nothing is new, and the factor from one look to the next
POLL, POLL_IDLE, SLOWER = 0.02, 0.05, 1.3
READ_AHEAD = 64 * 1024  # bytes of one stream
MAX_PARTS = 4096  # in one frame: they are in its header, and a piece may be a single byte
ALIVE_EVERY = 15.0  # s without output until the controller is sent a sign of life: it gives up on silence
FRAME_AFTER = 0.2  # s that a piece waits for others, when a search finds little

Emit = Callable[[Dict[str, Any], bytes], None]


def follow(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Emit pieces of the journal; return how the run stands.

    `arguments`: run_id; offsets {stream: offset} to continue from; follow; and, null for all: tail (lines a stream),
    sources (such as ["0", "agent"]), stream (stdout, stderr or agent), attempt, since and until (ns since 1970), grep
    (a regular expression). An emitted header has streams (names) and parts [[index into streams, offset, length, time
    in ns], ...]; one with `live` and `offsets` says that all there was up to these has been sent. While nothing is
    written, it is sent again every ALIVE_EVERY seconds, with no offsets.
    """
    folder = state.run_folder(arguments["run_id"])
    if not os.path.isdir(folder):
        return {"error": "no such run here", "code": "no-such-run"}
    try:
        reading = _Reading(arguments, os.path.join(folder, "log"))
    except re.error as error:
        return {"error": "python on this host cannot search for %r: %s" % (arguments["grep"], error), "code": "unknown"}
    pause = POLL
    live = False
    sent = time.monotonic()
    while True:
        ended = not state.guarded(folder)  # before reading: what was written last is read below
        if reading.send(emit):
            pause = POLL
            sent = time.monotonic()
            continue
        if ended or not arguments["follow"]:
            break
        if not live:
            live = True
            emit({"live": True, "offsets": reading.offsets()}, b"")
        elif time.monotonic() - sent > ALIVE_EVERY:
            sent = time.monotonic()
            emit({"live": True, "offsets": {}}, b"")
        # files cannot be waited for without inotify, which has no place in the standard library
        time.sleep(pause)
        pause = min(POLL_IDLE, pause * SLOWER)
    if ended:
        reading.finish(emit)
    run = runs.describe(arguments["run_id"], folder)
    answer = {"run": run, "ended": ended, "offsets": reading.offsets(), "cut": reading.cut()}
    if ended and arguments["follow"]:
        answer["stray_outputs"] = outputs.stray_outputs(folder)
    return answer


class _Reading:
    """All streams that were asked for, each with the reader that knows how far it is."""

    def __init__(self, arguments: Dict[str, Any], log: str) -> None:
        self._arguments = arguments
        self._log = log
        self._query = None
        if arguments["grep"] is not None:
            self._query = search.Query(arguments["grep"])
        self._readers: Dict[journal.Stream, journal_reader.Reader] = {}
        self._segments: Dict[journal.Stream, List[journal.Segment]] = {}
        self._cut: Set[journal.Stream] = set()  # those that have come to `until`

    def send(self, emit: Emit) -> int:
        """One round: what there is now, merged by time. Returns the pieces sent."""
        self._segments = journal.segments(self._log)
        for stream in sorted(self._segments):
            if stream not in self._readers and _wanted(self._arguments, stream):
                offset = _begin(self._arguments, stream, self._segments[stream])
                reader = journal_reader.Reader(offset) if self._query is None else search.Searcher(self._query, offset)
                self._readers[stream] = reader
        ahead: List[Tuple[int, int, journal.Stream, List[journal_reader.Piece]]] = []
        for number, stream in enumerate(self._readers):
            self._push(ahead, number, stream, self._read(stream))
        batch = _Batch(emit)
        while ahead:
            _, number, stream, pieces = heapq.heappop(ahead)
            batch.add(stream, pieces.pop(0))
            self._push(ahead, number, stream, pieces or self._read(stream))
        batch.flush()
        return batch.count

    @staticmethod
    def _push(ahead: List[Any], number: int, stream: journal.Stream, pieces: List[journal_reader.Piece]) -> None:
        if pieces:
            heapq.heappush(ahead, (pieces[0].at, number, stream, pieces))

    def _read(self, stream: journal.Stream) -> List[journal_reader.Piece]:
        if stream in self._cut:
            return []
        pieces = self._readers[stream].read(self._segments.get(stream, []), READ_AHEAD)
        until = self._arguments["until"]
        if until is not None and pieces and pieces[-1].at > until:
            pieces = [piece for piece in pieces if piece.at <= until]
            self._cut.add(stream)
        return pieces

    def finish(self, emit: Emit) -> None:
        """The run is over: what a search held back as a line without its end."""
        batch = _Batch(emit)
        for stream, reader in self._readers.items():
            if isinstance(reader, search.Searcher) and stream not in self._cut:
                for piece in reader.finish(self._segments.get(stream, [])):
                    batch.add(stream, piece)
        batch.flush()

    def offsets(self) -> Dict[str, int]:
        return {str(stream): reader.offset for stream, reader in self._readers.items()}

    def cut(self) -> List[str]:
        return [str(stream) for stream in self._cut]


def _wanted(arguments: Dict[str, Any], stream: journal.Stream) -> bool:
    return (
        (arguments["sources"] is None or stream.source in arguments["sources"])
        and arguments["attempt"] in (None, stream.attempt)
        and arguments["stream"] in (None, stream.shown_as)
    )


def _begin(arguments: Dict[str, Any], stream: journal.Stream, parts: List[journal.Segment]) -> int:
    known: Optional[int] = arguments["offsets"].get(str(stream))
    if known is not None:
        return known
    offset = 0
    if arguments["since"] is not None:
        offset = journal_reader.line_start(parts, journal_reader.first_since(parts, arguments["since"]))
    if arguments["tail"] is not None:
        until = arguments["until"]
        end = None if until is None else journal_reader.first_since(parts, until + 1)
        offset = max(offset, journal_reader.last_lines(parts, arguments["tail"], end))
    return offset


class _Batch:
    """Pieces of several streams in one frame."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._streams: Dict[journal.Stream, int] = {}
        self._parts: List[List[int]] = []
        self._data: List[bytes] = []
        self._size = 0
        self._began = 0.0
        self.count = 0

    def add(self, stream: journal.Stream, piece: journal_reader.Piece) -> None:
        if self._size + len(piece.data) > wire.MAX_PAYLOAD or len(self._parts) == MAX_PARTS:
            self.flush()
        if not self._parts:
            self._began = time.monotonic()
        index = self._streams.setdefault(stream, len(self._streams))
        self._parts.append([index, piece.offset, len(piece.data), piece.at])
        self._data.append(piece.data)
        self._size += len(piece.data)
        self.count += 1
        if time.monotonic() - self._began > FRAME_AFTER:
            self.flush()

    def flush(self) -> None:
        if self._parts:
            self._emit(
                {"streams": [str(stream) for stream in self._streams], "parts": self._parts}, b"".join(self._data)
            )
        self._streams, self._parts, self._data, self._size = {}, [], [], 0
