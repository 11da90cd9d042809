"""Searching a journal: what is found is what a look at every line finds, wherever chunks and segments end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.recorder import journal
from orchestrator.node.serve import journal_reader, search
from orchestrator.node.serve.search import Query, Searcher

STREAM = journal.Stream(1, "0", "out")
LINES = st.lists(
    st.sampled_from(
        [b"", b"step 12 loss 3.5", b"loss nan", b"RuntimeError: out of memory", b"caf\xc3\xa9 \xff", b"50%\r 90%\rloss"]
    )
    | st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
    max_size=30,
)
PATTERNS = [
    "loss",
    "loss nan",
    "nan|memory",
    "^loss$",
    r"^\s*50%",
    r"\d+\.\d",
    "(?i)runtimeerror",
    "(?<!s)loss",
    r"e\Z",
    "é",
    r"\\xff",
    "(?s).ss.*n",
    "",
    r"[^\d]5",
    "x{0,1}out",
    "caf. ",
    "ff",
    "(?-m:^)loss",
    r"\s5",
    "o*+ut",
    "$",
]


def put(folder: Path, data: bytes, segment: int, piece: int) -> None:
    """A journal of `data`, a piece a second, in segments of at least so many bytes."""
    start, records = 0, b""
    for end in [*range(piece, len(data), piece), len(data)]:
        records += journal.RECORD.pack(end, end // piece * 10**9)
        if end - start >= segment or end == len(data):
            name = folder / f"{STREAM}.{start:012d}"
            name.with_name(name.name + ".seg").write_bytes(data[start:end])
            name.with_name(name.name + ".idx").write_bytes(records)
            start, records = end, b""


def found(folder: Path, pattern: str, offset: int = 0) -> list[tuple[int, bytes]]:
    searcher = Searcher(Query(pattern), offset)
    parts = journal.segments(str(folder)).get(STREAM, [])
    pieces = []
    while new := searcher.read(parts, 0):
        assert new[-1].data == b"" and new[-1].offset == searcher.offset
        pieces += new
    pieces += searcher.finish(parts)
    assert [piece.at for piece in pieces] == sorted(piece.at for piece in pieces)
    return [(piece.offset, piece.data) for piece in pieces if piece.data]


def expected(data: bytes, pattern: str) -> list[tuple[int, bytes]]:
    hits, offset = [], 0
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
        if any(re.search(pattern, state) for state in text.split("\r")):
            hits.append((offset, line))
        offset += len(line)
    return hits


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(deadline=None, max_examples=30)
@given(LINES, st.booleans(), st.integers(1, 40), st.integers(1, 9))
def test_the_lines_found_are_those_that_a_look_at_each_finds(
    tmp_path_factory: pytest.TempPathFactory, pattern: str, lines: list[bytes], ends: bool, segment: int, piece: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    folder = tmp_path_factory.mktemp("journal")
    put(folder, data, segment, piece)
    assert found(folder, pattern) == expected(data, pattern)


def test_chunks_end_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CHUNK", 50)
    data = b"".join(b"line %03d %s\n" % (number, b"needle" if number % 7 == 0 else b"hay") for number in range(200))
    put(tmp_path, data, 64, 5)
    for pattern in ("needle", "nee.le$", "(?!x)needle"):
        assert found(tmp_path, pattern) == expected(data, pattern)


def test_a_line_that_is_longer_than_a_chunk_is_searched_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CHUNK", 50)
    put(tmp_path, b"x" * 120 + b"needle\nneedle\n", 1000, 1000)
    assert [data[-7:] for _, data in found(tmp_path, "needle")] == [b"needle\n", b"needle\n"]


def test_bytes_lost_to_a_full_disk_end_a_line(tmp_path: Path) -> None:
    (tmp_path / f"{STREAM}.000000000000.seg").write_bytes(b"one needle\ntwo nee")
    (tmp_path / f"{STREAM}.000000000100.seg").write_bytes(b"dle\nthree needle\n")
    assert found(tmp_path, "nee") == [(0, b"one needle\n"), (11, b"two nee"), (104, b"three needle\n")]


def test_the_end_of_a_line_is_waited_for(tmp_path: Path) -> None:
    segment = tmp_path / f"{STREAM}.000000000000.seg"
    segment.write_bytes(b"a needle\nhalf a nee")
    searcher = Searcher(Query("needle"), 0)
    parts = journal.segments(str(tmp_path))[STREAM]
    assert [piece.data for piece in searcher.read(parts, 0)] == [b"a needle\n", b""]
    assert searcher.read(parts, 0) == []
    assert searcher.offset == 9
    segment.write_bytes(b"a needle\nhalf a needle\n")
    assert [piece.data for piece in searcher.read(parts, 0)] == [b"half a needle\n", b""]


# --- where lines begin


@settings(deadline=None, max_examples=50)
@given(LINES, st.integers(1, 40), st.integers(1, 9), st.integers(0, 30))
def test_what_was_written_since_a_time_begins_with_a_whole_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], segment: int, piece: int, second: int
) -> None:
    data = b"".join(line.replace(b"\r", b"") + b"\n" for line in lines)
    if not data:
        return
    folder = tmp_path_factory.mktemp("journal")
    put(folder, data, segment, piece)
    parts = journal.segments(str(folder))[STREAM]
    times = journal_reader.Times()
    first = journal_reader.first_since(parts, second * 10**9)
    assert all(times.at(parts, offset) >= second * 10**9 for offset in range(first, len(data)))
    assert all(times.at(parts, offset) < second * 10**9 for offset in range(first))
    begin = journal_reader.line_start(parts, first)
    assert begin <= first and (begin == 0 or data[begin - 1 : begin] == b"\n") and b"\n" not in data[begin:first]
