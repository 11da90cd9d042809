"""The journal: a writer that may die anywhere, readers that miss nothing, a disk that may be full."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.node.recorder import journal
from orchestrator.node.recorder.journal import Stream, Writer
from orchestrator.node.serve import journal_reader
from orchestrator.node.serve.journal_reader import Piece, Reader

STREAM = Stream(1, "0", "out")


class Pipe:
    """A pipe as the guard's keeper holds it: never empty-handed, never at its end."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)

    def put(self, data: bytes) -> None:
        os.write(self.write, data)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    one = Pipe()
    yield one
    os.close(one.read)
    os.close(one.write)


def pieces(folder: Path, offset: int = 0, limit: int = 1 << 20) -> list[Piece]:
    reader = Reader(offset)
    found: list[Piece] = []
    while new := reader.read(journal.segments(str(folder)).get(STREAM, []), limit):
        found += new
    return found


def content(folder: Path, offset: int = 0, limit: int = 1 << 20) -> bytes:
    return b"".join(piece.data for piece in pieces(folder, offset, limit))


def write(folder: Path, pipe: Pipe, *parts: bytes) -> Writer:
    writer = Writer(str(folder), STREAM)
    for part in parts:
        pipe.put(part)
        assert writer.pump(pipe.read) == len(part)
    return writer


def test_bytes_come_back_as_they_were_written_each_with_its_time(tmp_path: Path, pipe: Pipe) -> None:
    write(tmp_path, pipe, b"one\n", b"\xff\0two", b"three\n").close()
    found = pieces(tmp_path)
    assert [(piece.offset, piece.data) for piece in found] == [(0, b"one\n"), (4, b"\xff\0two"), (9, b"three\n")]
    assert [piece.at for piece in found] == sorted(piece.at for piece in found)


def test_an_empty_pipe_gives_zero_and_does_not_block(tmp_path: Path, pipe: Pipe) -> None:
    assert write(tmp_path, pipe).pump(pipe.read) == 0


def test_files_of_the_journal_are_private(tmp_path: Path, pipe: Pipe) -> None:
    write(tmp_path, pipe, b"x").close()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_a_link_in_place_of_a_segment_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "1.0.out.000000000000.seg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        Writer(str(tmp_path), STREAM)


@pytest.mark.parametrize("offset", range(12))
def test_reading_may_begin_at_any_offset(tmp_path: Path, pipe: Pipe, offset: int) -> None:
    write(tmp_path, pipe, b"abc", b"defg", b"hijk").close()
    assert content(tmp_path, offset, limit=2) == b"abcdefghijk"[offset:]


def test_segments_follow_one_another_without_a_seam(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT", 10)
    parts = [b"%d," % number for number in range(40)]
    write(tmp_path, pipe, *parts).close()
    whole = b"".join(parts)
    assert len(journal.segments(str(tmp_path))[STREAM]) > 5
    for offset in range(len(whole)):
        assert content(tmp_path, offset) == whole[offset:]


# --- a writer that was killed


def test_a_new_writer_goes_on_where_the_killed_one_stopped(tmp_path: Path, pipe: Pipe) -> None:
    write(tmp_path, pipe, b"first ")  # never closed
    write(tmp_path, pipe, b"second").close()
    assert content(tmp_path) == b"first second"


@pytest.mark.parametrize("kept", range(33))
def test_an_index_cut_anywhere_loses_no_byte(tmp_path: Path, pipe: Pipe, kept: int) -> None:
    """Killed between the splice and its record, or within a record: the segment's length is the truth."""
    write(tmp_path, pipe, b"first ", b"second ").close()
    os.truncate(tmp_path / "1.0.out.000000000000.idx", kept)
    assert content(tmp_path) == b"first second "  # for a reader that comes before any new writer
    write(tmp_path, pipe, b"third").close()
    found = pieces(tmp_path)
    assert b"".join(piece.data for piece in found) == b"first second third"
    assert found[-1].data == b"third"
    assert (tmp_path / "1.0.out.000000000000.idx").stat().st_size % 16 == 0


def test_a_segment_without_an_index_is_read_whole(tmp_path: Path, pipe: Pipe) -> None:
    """The host lost its power: the segment had been written to the disk, its index had not."""
    write(tmp_path, pipe, b"all of it").close()
    os.truncate(tmp_path / "1.0.out.000000000000.idx", 0)
    (piece,) = pieces(tmp_path)
    assert piece.data == b"all of it"
    assert piece.at == (tmp_path / "1.0.out.000000000000.seg").stat().st_mtime_ns


def test_a_writer_killed_right_after_turning_to_a_new_segment_is_succeeded(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT", 4)
    write(tmp_path, pipe, b"full").close()
    (tmp_path / "1.0.out.000000000004.idx").touch()
    (tmp_path / "1.0.out.000000000004.seg").touch()
    write(tmp_path, pipe, b"more").close()
    assert content(tmp_path) == b"fullmore"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(st.binary(min_size=1, max_size=9), st.just("kill"), st.just("read"), st.integers(1, 17)), max_size=40
    )
)
def test_whatever_is_written_killed_cut_and_read_meanwhile_arrives(
    tmp_path_factory: pytest.TempPathFactory, doings: list[bytes | str | int]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    pipe = Pipe()
    segment, journal.SEGMENT = journal.SEGMENT, 16
    try:
        writer = Writer(str(folder), STREAM)
        reader = Reader()
        written, read = b"", b""
        for doing in [*doings, "read"]:
            if isinstance(doing, bytes):
                pipe.put(doing)
                writer.pump(pipe.read)
                written += doing
            elif doing == "read":
                while new := reader.read(journal.segments(str(folder)).get(STREAM, []), 5):
                    read += b"".join(piece.data for piece in new)
                assert read == written
            else:
                writer.close()
                if isinstance(doing, int):  # killed in the middle of a record
                    index = max(folder.glob("*.idx"))
                    os.truncate(index, max(0, index.stat().st_size - doing))
                writer = Writer(str(folder), STREAM)
        writer.close()
    finally:
        journal.SEGMENT = segment
        os.close(pipe.read)
        os.close(pipe.write)


# --- a full disk: only the numbers of its errors are made up here, tests/node has a real one


class Disk:
    """Lets the journal's writes fail for as long as it is full, or cannot be written for another reason."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self._number = number
        self.full = False
        self.no_files = False
        self._splice, self._open, self._pwrite = journal._splice, os.open, os.pwrite
        monkeypatch.setattr(journal, "_splice", self.splice)
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def splice(self, source: int, target: int, offset: int, count: int) -> int:
        self._check(self.full)
        return self._splice(source, target, offset, count)

    def open(self, path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        self._check(self.no_files and bool(flags & os.O_CREAT) and not Path(path).exists())
        return self._open(path, flags, mode, **more)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        self._check(self.full)
        return self._pwrite(handle, data, offset)

    def _check(self, fails: bool) -> None:
        if fails:
            raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("no_files", [False, True])
def test_what_a_full_disk_drops_is_a_gap_of_exactly_its_size(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, no_files: bool
) -> None:
    disk = Disk(monkeypatch)
    writer = write(tmp_path, pipe, b"before")
    disk.full, disk.no_files = True, no_files
    for lost in (b"lost", b"and this"):
        pipe.put(lost)
        assert writer.pump(pipe.read) == len(lost)  # taken from the pipe, or the rank would block
    assert writer.dropped == 12
    disk.full = disk.no_files = False
    pipe.put(b"after")
    writer.pump(pipe.read)
    writer.close()
    assert [(piece.offset, piece.data) for piece in pieces(tmp_path)] == [(0, b"before"), (18, b"after")]
    assert content(tmp_path, 9) == b"after"  # from within the gap


def test_a_killed_writers_gap_is_known_to_its_successor(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    writer = write(tmp_path, pipe, b"before")
    disk.full = True
    pipe.put(b"lost")
    writer.pump(pipe.read)
    disk.full = False
    write(tmp_path, pipe, b"after").close()
    assert [(piece.offset, piece.data) for piece in pieces(tmp_path)] == [(0, b"before"), (10, b"after")]


def test_a_disk_that_stays_full_gathers_no_files(tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    writer = write(tmp_path, pipe, b"before")
    disk.full = True
    for _ in range(20):
        pipe.put(b"lost")
        writer.pump(pipe.read)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_writer_can_begin_on_a_disk_that_cannot_be_written(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk = Disk(monkeypatch, number)
    disk.full = disk.no_files = True
    writer = Writer(str(tmp_path), STREAM)
    pipe.put(b"lost")
    assert writer.pump(pipe.read) == 4
    writer.append(b"our own line\n")
    disk.full = disk.no_files = False
    pipe.put(b"after")
    writer.pump(pipe.read)
    assert [(piece.offset, piece.data) for piece in pieces(tmp_path)] == [(4, b"after")]


def test_a_new_segment_that_cannot_be_made_does_not_stop_the_old_one(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT", 4)
    disk = Disk(monkeypatch)
    writer = write(tmp_path, pipe, b"full")
    disk.no_files = True
    pipe.put(b"more")
    assert writer.pump(pipe.read) == 4
    assert content(tmp_path) == b"fullmore"


def test_a_record_that_a_full_disk_cut_short_does_not_shift_the_later_ones(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write(tmp_path, pipe, b"one ")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: pwrite(handle, data[:5], offset))
    pipe.put(b"two ")
    writer.pump(pipe.read)
    monkeypatch.undo()
    pipe.put(b"three")
    writer.pump(pipe.read)
    assert content(tmp_path) == b"one two three"


# --- names, tail


def test_names_that_are_no_streams_are_left_alone(tmp_path: Path) -> None:
    for name in ("1.0.out.0.seg.x", "x.0.out.0.seg", "1.0.out.y.seg", "gang.jsonl", "1.0.out.000000000000.idx"):
        (tmp_path / name).touch()
    assert journal.segments(str(tmp_path)) == {}
    assert journal.segments(str(tmp_path / "nowhere")) == {}


TEXT = b"a\nbb\n\nccc\ndddd\n"


@pytest.mark.parametrize("ending", [b"", b"no newline"])
@pytest.mark.parametrize("segment", [1, 4, 100])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_tail_of_a_stream_begins_with_a_line(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, ending: bytes, segment: int, chunk: int
) -> None:
    monkeypatch.setattr(journal, "SEGMENT", segment)
    monkeypatch.setattr(journal_reader, "BACKWARDS", chunk)
    whole = TEXT + ending
    write(tmp_path, pipe, *(whole[at : at + 3] for at in range(0, len(whole), 3))).close()
    lines = whole.splitlines(keepends=True)
    for count in itertools.count():
        expected = b"".join(lines[max(0, len(lines) - count) :])
        offset = journal_reader.last_lines(journal.segments(str(tmp_path))[STREAM], count)
        assert whole[offset:] == expected
        if count > len(lines) + 1:
            break


def test_the_tail_may_end_before_the_end_of_the_stream(tmp_path: Path, pipe: Pipe) -> None:
    write(tmp_path, pipe, TEXT, b"later\n" * 9).close()
    parts = journal.segments(str(tmp_path))[STREAM]
    assert (TEXT + b"later\n")[journal_reader.last_lines(parts, 2, len(TEXT)) :] == b"ccc\ndddd\nlater\n"
    assert journal_reader.last_lines(parts, 0, len(TEXT)) == len(TEXT)


# --- no more than may be kept


def test_the_oldest_complete_segments_are_dropped_and_a_reader_goes_on_behind_them(tmp_path: Path, pipe: Pipe) -> None:
    writer = Writer(str(tmp_path), STREAM, segment=1000)
    reader = Reader()
    for number in range(50):
        pipe.put(b"%03d " % number * 100)
        writer.pump(pipe.read)
        if number == 10:
            early = reader.read(journal.segments(str(tmp_path))[STREAM], 1 << 20)
    assert b"".join(piece.data for piece in early).startswith(b"000 ")
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    dropped = journal.trim(str(tmp_path), 8000)
    after = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 6000 < after <= 8000 and dropped == {STREAM: before - after}
    text = content(tmp_path)
    assert text.endswith(b"049 " * 100) and text == b"".join(b"%03d " % n * 100 for n in range(50))[-len(text) :]
    first = reader.read(journal.segments(str(tmp_path))[STREAM], 1 << 20)[0]
    assert first.offset == 50 * 400 - len(text)
    assert journal.trim(str(tmp_path), 8000) == {}


def test_a_journal_that_cannot_be_written_any_more_drops_nothing(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(str(tmp_path), STREAM, segment=1000)
    for _ in range(5):
        pipe.put(b"x" * 1000)
        writer.pump(pipe.read)

    def refuse(_: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", refuse)
    assert journal.trim(str(tmp_path), 2000) == {}


def test_the_segment_that_is_being_written_is_kept_whatever_the_limit(tmp_path: Path, pipe: Pipe) -> None:
    write(tmp_path, pipe, b"x" * 5000)
    assert journal.trim(str(tmp_path), 1) == {}
    assert content(tmp_path) == b"x" * 5000


def test_attempts_that_have_ended_are_dropped_up_to_their_last_segment(tmp_path: Path, pipe: Pipe) -> None:
    attempts = [Stream(number, "0", "out") for number in range(1, 61)]
    for stream in attempts:
        pipe.put(b"x" * 1000)
        Writer(str(tmp_path), stream).pump(pipe.read)
    journal.trim(str(tmp_path), 8000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8000
    left = sorted(journal.segments(str(tmp_path)))
    assert left and left == attempts[-len(left) :]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"Traceback\nValueError: 7\n\n", "ValueError: 7"),
        (b"", ""),
        (b"usage: train.py\n==========\n----\n", "usage: train.py"),
        (
            b"train.py FAILED\n-----\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_20:53:31\n"
            b"  rank      : 2 (local_rank: 0)\n  exitcode  : 1 (pid: 77)\n  error_file: <N/A>\n=======\n",
            "rank : 2 (local_rank: 0), exitcode : 1 (pid: 77)",
        ),
        (
            b"step 3\nFatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n  <no frame>\n",
            "Fatal Python error: Segmentation fault",
        ),
        (
            b"  7%|##  |\nterminate called without an active exception\n",
            "terminate called without an active exception",
        ),
        (b"ValueError: bad sample\nterminate called without an active exception\n", "ValueError: bad sample"),
        (
            b"ValueError: bad\nterminate called without an active exception\nFatal Python error: Aborted\n\n  a\n",
            "ValueError: bad",
        ),
        (
            b"terminate called without an active exception\nFatal Python error: Aborted\n\nExtension modules: a\n",
            "terminate called without an active exception",
        ),
        (
            b"[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: 7\n"
            b"[rank3]:[W1122 23:02:01.123456789 ProcessGroupGloo.cpp:527] Warning: not destroyed\n",
            "ValueError: 7",
        ),
        (
            b'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    loss.backward()\n'
            b"torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors might be reported\n"
            b"For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA`.\n\n",
            "torch.AcceleratorError: CUDA error: device-side assert triggered ... Compile with `TORCH_USE_CUDA_DSA`.",
        ),
        (
            b'[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3, in load\n'
            b"[rank1]: RuntimeError: Error(s) in loading state_dict for Net:\n[rank1]: \tsize mismatch for fc.weight\n",
            "RuntimeError: Error(s) in loading state_dict for Net: ... size mismatch for fc.weight",
        ),
        (
            b'Traceback (most recent call last):\n  File "a.py", line 3\nKeyError: 7\n'
            + b"skipped\n" * 20
            + b"no data\n",
            "no data",
        ),
        (
            "error: externally-managed-environment\n\n× This environment is externally managed\n"
            "╰─> To install, try apt\n\nnote: If you believe this is a mistake, contact\nhint: See PEP 668\n".encode(),
            "error: externally-managed-environment",
        ),
        (b"epoch 3\nnote: the best so far\n", "note: the best so far"),
        (
            b'Traceback (most recent call last):\n  File "a.py", line 3\nKeyError: 7\n\nDuring handling of the above '
            b'exception, another exception occurred:\n\nTraceback (most recent call last):\n  File "b.py", line 9\n'
            b"ValueError: no column 7\nwandb: Find logs at: wandb/run-1/logs\n",
            "ValueError: no column 7 ... wandb: Find logs at: wandb/run-1/logs",
        ),
        (
            b'[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3\n[rank1]: KeyError: 7\n'
            b"E1128 23:00:00.000000 207 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)\n"
            b'Traceback (most recent call last):\n  File "torchrun", line 8, in <module>\n    sys.exit(main())\n'
            b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\na.py FAILED\n----\n"
            b"Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n",
            "KeyError: 7",
        ),
        (
            b"/opt/venv/bin/python3: can't open file '/code/trian.py': [Errno 2] No such file or directory\n"
            b"E1128 23:00:00.000000 207 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 2)\n"
            b'Traceback (most recent call last):\n  File "torchrun", line 8, in <module>\n    sys.exit(main())\n'
            b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrian.py FAILED\n----\n"
            b"Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 2 (pid: 9)\n",
            "/opt/venv/bin/python3: can't open file '/code/trian.py': [Errno 2] No such file or directory",
        ),
        (
            b"ValueError: 7\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
            "ValueError: 7",
        ),
    ],
)
def test_the_last_words_of_a_rank_say_what_happened(tmp_path: Path, pipe: Pipe, written: bytes, words: str) -> None:
    write(tmp_path, pipe, written)
    assert journal.last_words(str(tmp_path), STREAM) == words
