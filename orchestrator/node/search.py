"""Search a stream of the journal: of its lines only those that a regular expression is found in are read.

Journals are big and hits are rare, so the work is done a chunk at a time, by the quickest means that misses nothing:
libc's memmem for a text that every match must hold, else the expression over the whole chunk; only what these find is
looked at as a line.
"""

import contextlib
import ctypes
import os
import re
import signal
import threading
from typing import Iterator, List, Tuple

from .journal import Piece, Reader, Segment, Times

CHUNK = 256 * 1024  # bytes: it stays in the cache of a core, and a line that is longer is searched in parts
STRETCH = 16  # chunks without a hit until it is said how far the search has come
CPU_LIMIT = 60  # s for one chunk, after which the relay is ended: there are expressions that would take years

_libc = ctypes.CDLL(None)
_libc.memmem.restype = ctypes.c_void_p
_libc.memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]

# What could make a match within a line depend on its neighbours, when many lines are searched as one text.
_NEEDS_LINES = ("\\A", "\\Z", "\\z", "(?!", "(?<!", "(?>", "(?(", "++", "*+", "?+", "}+")
_TOKEN = re.compile(
    r"(?P<escape>\\.) | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]) | (?P<any>[.^$]) | (?P<plus>\+)"
    r"| (?P<fewer>[*?]|\{\d*,?\d*\}) | (?P<group>[|()]) | (?P<plain>.)",
    re.DOTALL | re.VERBOSE,
)

_END_OF_ESCAPE = re.compile(r"\Ax?[0-9a-f]{1,2}")


def literal(pattern: str) -> bytes:
    """The longest text that surely is in every match, b"" where none is known. Groups and alternatives give none."""
    runs = [""]
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup, token[0]
        if kind == "group" or (kind == "escape" and (text[1] in "\\xuUN" or text[1].isdigit())):
            return b""
        if kind == "plain":
            runs[-1] += text
        elif kind == "escape" and not text[1].isalpha():
            runs[-1] += text[1]
        else:
            if kind == "fewer":
                runs[-1] = runs[-1][:-1]
            runs.append("")
    # its beginning may be the end of a \xff, as which a byte is shown that is not UTF-8
    runs = [_END_OF_ESCAPE.sub("", run) for run in runs]
    try:
        return max(runs, key=len).encode("utf-8")
    except UnicodeEncodeError:
        return b""


class Query:
    """A regular expression, made ready to search chunks. Raises re.error."""

    def __init__(self, pattern: str) -> None:
        self._line = re.compile(pattern)
        self._literal = literal(pattern)
        by_line = any(part in pattern for part in _NEEDS_LINES) or self._line.flags & re.DOTALL
        self._chunk = None if by_line else re.compile(pattern, re.MULTILINE)
        self._buffer = bytearray(CHUNK)
        self._view = memoryview(self._buffer)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))

    def fill(self, parts: List[Segment], offset: int) -> Tuple[int, int, bool]:
        """Read a chunk. Returns the offset it begins at, its size, and whether the bytes behind it are lost."""
        size = 0
        for number, segment in enumerate(parts):
            if number + 1 < len(parts) and offset + size >= parts[number + 1].start:
                continue
            if segment.start > offset + size:
                if size:
                    return offset, size, True
                offset = segment.start
            size += self._read(segment, offset + size - segment.start, size)
            if size == CHUNK:
                break
        return offset, size, False

    def _read(self, segment: Segment, start: int, position: int) -> int:
        try:
            with open(segment.path + ".seg", "rb", buffering=0) as file:
                return os.preadv(file.fileno(), [self._view[position:]], start)
        except FileNotFoundError:
            return 0  # an empty one that its writer has just left for a later one

    def last_line_end(self, size: int) -> int:
        return self._buffer.rfind(b"\n", 0, size) + 1

    def take(self, start: int, end: int) -> bytes:
        return bytes(self._view[start:end])

    def hits(self, size: int) -> Iterator[Tuple[int, int]]:
        """Where in the chunk the lines begin and end that have a hit."""
        end = 0
        for position in self._candidates(size):
            if position < end:
                continue
            start = self._buffer.rfind(b"\n", end, position) + 1 or end
            end = self._buffer.find(b"\n", position, size) + 1 or size
            if self.found_in(self.take(start, end)):
                yield start, end

    def found_in(self, line: bytes) -> bool:
        """Whether there is a hit in a line, or in one of the states that a progress bar has gone through."""
        text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
        return any(self._line.search(state) for state in text.split("\r"))

    def _candidates(self, size: int) -> Iterator[int]:
        """Positions in the chunk, ascending; each line with a hit has at least one of them."""
        if self._literal:
            position = 0
            while True:
                found = _libc.memmem(self._address + position, size - position, self._literal, len(self._literal))
                if found is None:
                    return
                yield found - self._address
                # the rest of a line need not be searched: either it was a hit or it was none
                position = self._buffer.find(b"\n", found - self._address, size) + 1
                if not position:
                    return
        if self._chunk is None or not self._view[:size].tobytes().isascii():
            position = 0
            while position < size:
                yield position
                position = self._buffer.find(b"\n", position, size) + 1 or size
            return
        text = self._view[:size].tobytes().decode("ascii").replace("\r", "\n")  # one character a byte
        position = 0
        while position < size:
            match = self._chunk.search(text, position)
            if match is None:
                return
            yield match.start()
            position = self._buffer.find(b"\n", match.start(), size) + 1 or size


_searches = 0
_counting = threading.Lock()


@contextlib.contextmanager
def cpu_limit() -> Iterator[None]:
    """While a chunk is searched. A process has one such timer, and may search in several threads."""
    global _searches
    with _counting:
        _searches += 1
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)
    try:
        yield
    finally:
        with _counting:
            _searches -= 1
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT if _searches else 0)


class Searcher(Reader):
    """As a Reader, but what it reads are the lines with a hit. An empty piece says how far it has searched.

    A line is searched when its end is there; `finish` is for the last one, if it has none.
    """

    def __init__(self, query: Query, offset: int) -> None:
        super().__init__(offset)
        self._query = query
        self._times = Times()

    def read(self, parts: List[Segment], limit: int) -> List[Piece]:
        progress: List[Piece] = []
        for _ in range(STRETCH):
            pieces = self._search(parts, False)
            progress = pieces or progress
            if len(pieces) != 1:
                break
        return progress

    def finish(self, parts: List[Segment]) -> List[Piece]:
        return self._search(parts, True)

    def _search(self, parts: List[Segment], final: bool) -> List[Piece]:
        query = self._query
        start, size, lost = query.fill(parts, self.offset)
        end = query.last_line_end(size)
        if not end and (final or lost or size == CHUNK):
            end = size
        if not end:
            return []
        with cpu_limit():
            found = [
                Piece(start + begin, self._times.at(parts, start + stop - 1), query.take(begin, stop))
                for begin, stop in query.hits(end)
            ]
        self.offset = start + end
        return [*found, Piece(self.offset, self._times.at(parts, self.offset - 1), b"")]
