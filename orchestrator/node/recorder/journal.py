"""The journal: what the processes of a run wrote on this host, byte for byte, with the time each piece arrived.

One folder a run; a *stream* is one FIFO's bytes, named `ATTEMPT.SOURCE.CHANNEL`, such as `1.0.out` (attempt 1, rank
0, stdout) or `1.agent.err`. A stream is kept in segments named by the offset they begin at:

    log/1.0.out.000000000000.seg    raw bytes
    log/1.0.out.000000000000.idx    records of (end offset, time in ns since 1970), little endian u64 i64, one a piece

A gap in a stream (the disk was full) shows as a segment that begins after the end of the one before; after
`trim`, the first segment of a stream does not begin at 0.
The writer may be killed between any two instructions: bytes are moved by splice(2), so they are in the FIFO or in the
segment and never only in memory, and the segment's length, not the index, says how far it came.
"""

import contextlib
import ctypes
import os
import struct
import sys
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..host.state import UNWRITABLE
from .last_words import last_words_of

RECORD = struct.Struct("<Qq")
SEGMENT = 64 * 1024 * 1024
SEGMENT_LEAST = 256 * 1024
PIECE = 1024 * 1024
TAIL = 16 * 1024  # bytes of a stream that are searched for the reason why its process ended
SPLICE_F_MOVE, SPLICE_F_NONBLOCK = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def _splice(source: int, target: int, offset: int, count: int) -> int:
    if hasattr(os, "splice"):  # Python >= 3.10
        return os.splice(source, target, count, offset_dst=offset, flags=SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
    where = ctypes.c_longlong(offset)
    moved = int(
        _libc.splice(
            source, None, target, ctypes.byref(where), ctypes.c_size_t(count), SPLICE_F_MOVE | SPLICE_F_NONBLOCK
        )
    )
    if moved < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return moved


class Stream(NamedTuple):
    attempt: int
    source: str  # a rank, "agent" (torchrun) or "run" (our own lines)
    channel: str  # "out" or "err"

    def __str__(self) -> str:
        return "%d.%s.%s" % self

    @property
    def writer(self) -> str:
        """Who wrote it, in messages."""
        return "rank %s" % self.source if self.source.isdigit() else self.source

    @property
    def shown_as(self) -> str:
        """stdout or stderr of a rank; agent: torchrun's and our own lines."""
        return {"out": "stdout", "err": "stderr"}[self.channel] if self.source.isdigit() else "agent"


class Segment(NamedTuple):
    start: int
    path: str  # without its extension


def last_words(folder: str, stream: Stream) -> str:
    """What the end of a stream says of why the process ended; "" if it says nothing."""
    parts = segments(folder).get(stream)
    if not parts:
        return ""
    with open(parts[-1].path + ".seg", "rb") as file:
        return _last_words(file.fileno())


def _last_words(file: int) -> str:
    return last_words_of(
        os.pread(file, TAIL, max(0, os.fstat(file).st_size - TAIL)).decode("utf-8", "backslashreplace")
    )


def segments(folder: str) -> Dict[Stream, List[Segment]]:
    """The segments of every stream in a journal's folder, in order."""
    by_stream: Dict[Stream, List[Segment]] = {}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return by_stream
    for name in names:
        parts = name.split(".")
        if len(parts) != 5 or parts[4] != "seg" or not (parts[0].isdigit() and parts[3].isdigit()):
            continue
        stream = Stream(int(parts[0]), parts[1], parts[2])
        by_stream.setdefault(stream, []).append(Segment(int(parts[3]), os.path.join(folder, name[:-4])))
    for parts_of in by_stream.values():
        parts_of.sort()
    return by_stream


def gaps(folder: str) -> Dict[Stream, int]:
    """The bytes of each stream that are not in the journal, because the disk was full."""
    missing: Dict[Stream, int] = {}
    for stream, parts in segments(folder).items():
        gap = sum(max(0, parts[number].start - _end(parts[number - 1])) for number in range(1, len(parts)))
        if gap:
            missing[stream] = gap
    return missing


def _end(part: Segment) -> int:
    with contextlib.suppress(FileNotFoundError):
        return part.start + os.stat(part.path + ".seg").st_size
    return sys.maxsize  # the recorder has just dropped it, as the oldest


def trim(folder: str, limit: int) -> Dict[Stream, int]:
    """Drop the oldest complete segments until the journal has at most `limit` bytes. Returns the bytes dropped.

    Only the newest attempt has segments that are not complete: the last one of each stream.
    """
    old: List[Tuple[int, Stream, Segment, int]] = []
    total = 0
    by_stream = segments(folder)
    newest = max((stream.attempt for stream in by_stream), default=0)
    for stream, parts in by_stream.items():
        for segment in parts:
            try:
                status = os.stat(segment.path + ".seg")
                size = status.st_size + os.stat(segment.path + ".idx").st_size
            except FileNotFoundError:
                continue  # its writer has just left it
            total += size
            if segment != parts[-1] or stream.attempt < newest:
                old.append((status.st_mtime_ns, stream, segment, size))
    dropped: Dict[Stream, int] = {}
    for _, stream, segment, size in sorted(old):
        if total <= limit:
            break
        try:
            os.unlink(segment.path + ".seg")
            os.unlink(segment.path + ".idx")
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            break
        total -= size
        dropped[stream] = dropped.get(stream, 0) + size
    return dropped


class Writer:
    """Appends one stream. Only one exists at a time: a recorder is restarted only when the old one has been reaped.

    A disk that is full, or cannot be written, is not an error here: the job must neither fail nor wait. The bytes are
    dropped, and the next segment begins after the gap.
    """

    def __init__(
        self, folder: str, stream: Stream, segment: Optional[int] = None, known: Optional[List[Segment]] = None
    ) -> None:
        """`segment`: bytes after which a new one is begun. `known`: the stream's, where they have been looked up."""
        self._folder = folder
        self.stream = stream
        self._segment = segment or SEGMENT
        self._file = self._index = -1
        self.dropped = 0
        known = segments(folder).get(stream) if known is None else known
        self._start = self._end = known[-1].start if known else 0  # of the open segment; of the stream
        self._gap = not self._open(self._end)  # bytes were dropped, so the open segment takes no more

    def _open(self, start: int) -> bool:
        """Switch to the segment that begins at `start`. False when the disk is full; then nothing has changed."""
        path = os.path.join(self._folder, "%s.%012d" % (self.stream, start))
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        index = -1
        try:
            index = os.open(path + ".idx", flags, 0o600)  # first: a segment has an index
            file = os.open(path + ".seg", flags, 0o600)
        except OSError as error:
            if index >= 0:
                os.close(index)
            if error.errno not in UNWRITABLE:
                raise
            return False
        self._leave(start)
        self._file, self._index, self._start = file, index, start
        self._end = start + os.fstat(file).st_size
        # a predecessor may have been killed between moving bytes and writing their record, or while writing it
        self._records = os.fstat(index).st_size // RECORD.size
        if self._end > (self._indexed() if self._records else start):
            self._record()
        return True

    def _leave(self, following: int) -> None:
        """Close the open segment, and remove it if it is empty because everything was dropped."""
        if self._file >= 0 and os.fstat(self._file).st_size == 0 and self._start != following:
            path = os.path.join(self._folder, "%s.%012d" % (self.stream, self._start))
            os.unlink(path + ".seg")
            os.unlink(path + ".idx")
        self.close()

    def _indexed(self) -> int:
        return int(RECORD.unpack(os.pread(self._index, RECORD.size, (self._records - 1) * RECORD.size))[0])

    def _record(self) -> None:
        # by position, not at the end: a record that a full disk cut short is written over by the next, which covers it
        record = RECORD.pack(self._end, time.time_ns())
        try:
            self._records += os.pwrite(self._index, record, self._records * RECORD.size) == RECORD.size
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise

    def pump(self, fifo: int) -> int:
        """Move what the FIFO holds, at most a piece. Returns the bytes taken from it, 0: it is empty. Never blocks."""
        if (self._gap or self._end - self._start >= self._segment) and self._open(self._end):
            self._gap = False
        if self._gap:
            return self._drop(fifo)
        try:
            moved = _splice(fifo, self._file, self._end - self._start, PIECE)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            return self._drop(fifo)
        if moved:
            self._end += moved
            self._record()
        return moved

    def _drop(self, fifo: int) -> int:
        try:
            lost = len(os.read(fifo, PIECE))
        except BlockingIOError:
            return 0
        self.dropped += lost
        self._end += lost
        # at once, though it may stay empty: its name tells a successor how much was dropped
        self._gap = not self._open(self._end)
        return lost

    def last_words(self) -> str:
        """As `last_words`, without a look at the streams of all attempts."""
        return _last_words(self._file) if self._file >= 0 else ""

    def append(self, data: bytes) -> None:
        """Write our own lines. Losing one is better than stopping the recorder."""
        if self._gap:
            return
        try:
            self._end += os.pwrite(self._file, data, self._end - self._start)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            return
        self._record()

    def close(self) -> None:
        for handle in (self._file, self._index):
            if handle >= 0:
                os.close(handle)
        self._file = self._index = -1
