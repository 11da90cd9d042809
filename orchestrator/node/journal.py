"""The journal: what the processes of a run wrote on this host, byte for byte, with the time each piece arrived.

One folder a run; a *stream* is one FIFO's bytes, named `ATTEMPT.SOURCE.CHANNEL`, such as `1.0.out` (attempt 1, local rank 0,
stdout) or `1.agent.err`. A stream is kept in segments named by the offset they begin at:

    log/1.0.out.000000000000.seg    raw bytes
    log/1.0.out.000000000000.idx    records of (end offset, time in ns since 1970), little endian u64 i64, one a piece

A gap in a stream (the disk was full, an old segment was dropped) shows as a segment that begins after the end of the one before.
The writer may be killed between any two instructions: bytes are moved by splice(2), so they are in the FIFO or in the
segment and never only in memory, and the segment's length, not the index, says how far it came.
"""

import ctypes
import errno
import os
import struct
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

RECORD = struct.Struct("<Qq")
SEGMENT = 64 * 1024 * 1024
PIECE = 1024 * 1024
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
    source: str  # a local rank, "agent" (torchrun) or "run" (our own lines)
    channel: str  # "out" or "err"

    def __str__(self) -> str:
        return "%d.%s.%s" % self


class Segment(NamedTuple):
    start: int
    path: str  # without its extension


def segments(folder: str) -> Dict[Stream, List[Segment]]:
    """The segments of every stream in a journal's folder, in order."""
    found: Dict[Stream, List[Segment]] = {}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return found
    for name in names:
        parts = name.split(".")
        if len(parts) != 5 or parts[4] != "seg" or not (parts[0].isdigit() and parts[3].isdigit()):
            continue
        stream = Stream(int(parts[0]), parts[1], parts[2])
        found.setdefault(stream, []).append(Segment(int(parts[3]), os.path.join(folder, name[:-4])))
    for parts_of in found.values():
        parts_of.sort()
    return found


class Writer:
    """Appends one stream. Exactly one writer a stream exists at a time: the recorder is restarted only when it has been reaped."""

    def __init__(self, folder: str, stream: Stream) -> None:
        self._folder = folder
        self._stream = stream
        self._file = self._index = -1
        self.dropped = 0
        known = segments(folder).get(stream)
        self._open(known[-1].start if known else 0)

    def _open(self, start: int) -> None:
        self.close()
        path = os.path.join(self._folder, "%s.%012d" % (self._stream, start))
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path + ".seg", flags, 0o600)
        self._index = os.open(path + ".idx", flags, 0o600)
        self._start = start
        self._end = start + os.fstat(self._file).st_size
        # a predecessor may have been killed after it moved bytes and before it wrote their record, or in the middle of one
        whole = os.fstat(self._index).st_size // RECORD.size * RECORD.size
        os.ftruncate(self._index, whole)
        os.lseek(self._index, whole, os.SEEK_SET)
        if self._end > start and self._indexed(whole) < self._end:
            self._record()

    def _indexed(self, size: int) -> int:
        if size == 0:
            return self._start
        with open("/proc/self/fd/%d" % self._index, "rb") as file:
            file.seek(size - RECORD.size)
            return int(RECORD.unpack(file.read(RECORD.size))[0])

    def _record(self) -> None:
        os.write(self._index, RECORD.pack(self._end, time.time_ns()))

    def pump(self, fifo: int) -> int:
        """Move what the FIFO holds, at most a piece. Returns the bytes moved, 0 when it is empty. Never blocks, never raises for a full disk."""
        if self._end - self._start >= SEGMENT:
            try:
                self._open(self._end)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        try:
            moved = _splice(fifo, self._file, self._end - self._start, PIECE)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            return self._discard(fifo)
        if moved:
            self._end += moved
            try:
                self._record()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        return moved

    def _discard(self, fifo: int) -> int:
        """The disk is full: the job must neither fail nor wait for that, so the bytes go and the gap says how many."""
        try:
            lost = len(os.read(fifo, PIECE))
        except BlockingIOError:
            return 0
        self.dropped += lost
        return lost

    def append(self, data: bytes) -> None:
        """Our own lines, of which none is so precious that it may stop the recorder."""
        try:
            written = os.pwrite(self._file, data, self._end - self._start)
            self._end += written
            self._record()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise

    def close(self) -> None:
        for handle in (self._file, self._index):
            if handle >= 0:
                os.close(handle)
        self._file = self._index = -1


class Piece(NamedTuple):
    offset: int
    at: int  # ns since 1970
    data: bytes


class Reader:
    """Reads one stream from an offset on, while it is being written or later."""

    def __init__(self, folder: str, stream: Stream, offset: int = 0) -> None:
        self._folder = folder
        self._stream = stream
        self.offset = offset

    def _current(self) -> Optional[Tuple[Segment, Optional[int]]]:
        """The segment that holds self.offset, or the next after a gap; and where the following one begins."""
        parts = segments(self._folder).get(self._stream, [])
        for number, segment in enumerate(parts):
            following = parts[number + 1].start if number + 1 < len(parts) else None
            if following is None or self.offset < following:
                return segment, following
        return None

    def read(self, limit: int) -> List[Piece]:
        """The next pieces, together at most about `limit` bytes; [] when there is nothing new."""
        current = self._current()
        if current is None:
            return []
        segment, following = current
        pieces = _pieces(segment, max(self.offset, segment.start), limit)
        if pieces:
            self.offset = pieces[-1].offset + len(pieces[-1].data)
        elif following is not None:  # this segment is read to its end
            self.offset = following
            return self.read(limit)
        return pieces


def _pieces(segment: Segment, offset: int, limit: int) -> List[Piece]:
    found: List[Piece] = []
    try:
        index = open(segment.path + ".idx", "rb")
        data = open(segment.path + ".seg", "rb")
    except FileNotFoundError:
        return found
    with index, data:
        records = os.fstat(index.fileno()).st_size // RECORD.size
        position = _first_after(index.fileno(), records, offset)
        while position < records and limit > 0:
            end, at = RECORD.unpack(os.pread(index.fileno(), RECORD.size, position * RECORD.size))
            piece = os.pread(data.fileno(), min(end - offset, limit), offset - segment.start)
            if not piece:
                break
            found.append(Piece(offset, at, piece))
            offset += len(piece)
            limit -= len(piece)
            position += offset >= end
    return found


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


def size(folder: str, stream: Stream) -> int:
    """Where a stream ends now."""
    parts = segments(folder).get(stream)
    if not parts:
        return 0
    return parts[-1].start + os.stat(parts[-1].path + ".seg").st_size
