"""Search a stream of the journal: read only the lines in which a regular expression matches.

Journals are big and hits are rare, so many lines are searched as one text. Only what that finds is looked at as a line.
"""

import os
import re
import time
from typing import Iterator, List, Tuple

from ..recorder.journal import Segment
from .journal_reader import Piece, Reader, Times

# bytes; a line that is longer is searched in parts. From 128 KiB on malloc has the kernel map new pages each time, and
# that took three times as long as the search.
CHUNK = 64 * 1024
PROGRESS = 1.0  # s without a hit until a search reports how far it has come

_OPERATORS = frozenset("\\.^$*+?{}[]|()")
# What may find something in a line alone, but not in the same line among others: the ends of the whole text, and groups
# and quantifiers that do not try again. Groups that only name, or that ignore case, are none of these.
_NEEDS_LINES = re.compile(r"\\[AZz] | \(\?(?!:|P|i\)) | [*+?}]\+", re.VERBOSE)
_END_OF_ESCAPE = re.compile("[x0-9a-f]")  # of \xff, as which a byte is shown that is not UTF-8


class Query:
    """A regular expression, made ready to search chunks. Raises re.error."""

    def __init__(self, pattern: str) -> None:
        self._line = re.compile(pattern)
        self._literal = b"" if _OPERATORS & set(pattern) else pattern.encode("utf-8", "surrogatepass")
        self._always = not _END_OF_ESCAPE.match(pattern)  # the literal can be searched whatever the other bytes are
        self._lines = None if _NEEDS_LINES.search(pattern) else re.compile(pattern, re.MULTILINE)

    def hits(self, chunk: bytes) -> Iterator[Tuple[int, int]]:
        """Where the lines begin and end that have a hit."""
        for start, end in self._candidates(chunk):
            if self._found_in(chunk[start:end]):
                yield start, end

    def _found_in(self, line: bytes) -> bool:
        """Whether there is a hit in a line, or in one of the states that a progress bar has gone through."""
        text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
        return any(self._line.search(state) for state in text.split("\r"))

    def _candidates(self, chunk: bytes) -> Iterator[Tuple[int, int]]:
        """The lines that may have a hit."""
        if self._literal and (self._always or chunk.isascii()):
            return _lines_with(self._literal, chunk)
        try:
            text = chunk.decode("utf-8")
        except UnicodeDecodeError:
            return _all_lines(chunk)
        return _all_lines(chunk) if self._lines is None else _lines_matching(self._lines, text)


def _all_lines(chunk: bytes) -> Iterator[Tuple[int, int]]:
    end = 0
    while end < len(chunk):
        start, end = end, chunk.find(b"\n", end) + 1 or len(chunk)
        yield start, end


def _lines_with(literal: bytes, chunk: bytes) -> Iterator[Tuple[int, int]]:
    end = 0
    while True:
        position = chunk.find(literal, end)
        if position < 0:
            return
        start = chunk.rfind(b"\n", end, position) + 1 or end
        end = chunk.find(b"\n", position) + 1 or len(chunk)
        yield start, end


def _lines_matching(pattern: "re.Pattern[str]", text: str) -> Iterator[Tuple[int, int]]:
    """The lines, in bytes, in which a match begins. It may reach into the lines behind."""
    states = text.replace("\r", "\n")
    position = offset = 0  # in characters; in bytes
    while position < len(text):
        match = pattern.search(states, position)
        if match is None:
            return
        start = text.rfind("\n", position, match.start()) + 1 or position
        end = text.find("\n", match.start()) + 1 or len(text)
        begin = offset + len(text[position:start].encode("utf-8"))
        offset = begin + len(text[start:end].encode("utf-8"))
        position = end
        if begin < offset:  # else a match of nothing, behind the last line
            yield begin, offset


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
        until = time.monotonic() + PROGRESS
        while True:
            pieces = self._search(parts, False)
            progress = pieces or progress
            if len(pieces) != 1 or time.monotonic() > until:
                return progress

    def finish(self, parts: List[Segment]) -> List[Piece]:
        return self._search(parts, True)

    def _search(self, parts: List[Segment], final: bool) -> List[Piece]:
        start, chunk, lost = _read(parts, self.offset)
        end = chunk.rfind(b"\n") + 1
        if not end and (final or lost or len(chunk) == CHUNK):
            end = len(chunk)
        if not end:
            return []
        hits = [
            Piece(start + begin, self._times.at(parts, start + stop - 1), chunk[begin:stop])
            for begin, stop in self._query.hits(chunk if end == len(chunk) else chunk[:end])
        ]
        self.offset = start + end
        return [*hits, Piece(self.offset, self._times.at(parts, self.offset - 1), b"")]


def _read(parts: List[Segment], offset: int) -> Tuple[int, bytes, bool]:
    """Read a chunk. Returns the offset it begins at, its bytes, and whether the bytes behind it are lost."""
    chunk = b""
    for number, segment in enumerate(parts):
        if number + 1 < len(parts) and offset + len(chunk) >= parts[number + 1].start:
            continue
        if segment.start > offset + len(chunk):
            if chunk:
                return offset, chunk, True
            offset = segment.start
        try:
            with open(segment.path + ".seg", "rb", buffering=0) as file:
                data = os.pread(file.fileno(), CHUNK - len(chunk), offset + len(chunk) - segment.start)
        except FileNotFoundError:
            continue  # an empty one that its writer has just left for a later one
        chunk = chunk + data if chunk else data
        if len(chunk) == CHUNK:
            break
    return offset, chunk, False
