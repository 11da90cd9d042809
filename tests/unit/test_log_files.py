"""A run's lines as files."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from orchestrator.errors import OutputError, UsageError
from orchestrator.output.lines import LINE_LIMIT, Line, Mask
from orchestrator.runs import log_files
from orchestrator.runs.log_files import LogFiles


def line(text: str, rank: int | None, at: float = 0.0, partial: bool = False, attempt: int = 1) -> Line:
    return Line(at, "node-0", rank, "agent" if rank is None else "stdout", attempt, text, partial)


def test_each_rank_has_a_file_and_all_are_merged_in_another(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "out", ["node-0"], Mask(["correct-horse"]))
    files.add([line("one", 0), line("starting", None), line("my correct-horse \x1b[2Jwipe", 12, 1.5)])
    files.add([line("x" * LINE_LIMIT, 0, partial=True), line("two", 12), line("ended", 0), line("again", 0, attempt=2)])
    files.close()
    written = {str(path.relative_to(tmp_path / "out")): path.read_text() for path in (tmp_path / "out").rglob("*.log")}
    merged = written.pop("merged.log")
    assert written == {
        "attempt-1/rank-00.stdout.log": "one\n" + "x" * LINE_LIMIT + "ended\n",
        "attempt-1/rank-12.stdout.log": "my *** wipe\ntwo\n",
        "attempt-1/node-0.agent.log": "starting\n",
        "attempt-2/rank-00.stdout.log": "again\n",
    }
    assert "1970-01-01T00:00:01.500000Z node-0:12    | my *** wipe\n" in merged
    assert len(merged.splitlines()) == 7 and files.lines == 6 and files.count == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*.log")} == {0o600}


def test_more_ranks_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_OPEN", 3)
    files = LogFiles(tmp_path, ["node-0"], Mask())
    for number in range(30):
        files.add([line(f"line {number}", number % 7)])
    files.close()
    for rank in range(7):
        lines = (tmp_path / f"attempt-1/rank-{rank:02}.stdout.log").read_text().splitlines()
        assert lines == [f"line {number}" for number in range(30) if number % 7 == rank]


def test_a_full_disk_is_an_error_of_the_output(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=os.strerror(errno.EFBIG)):
        fill(LogFiles(tmp_path, ["node-0"], Mask()))


def fill(files: LogFiles) -> None:
    """Write more than a file may have."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        files.add([line("x" * 10_000, 0)])
        files.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_that_were_there_are_replaced(tmp_path: Path) -> None:
    for text in ("a longer text than the next", "short"):
        files = LogFiles(tmp_path, ["node-0"], Mask())
        files.add([line(text, 0)])
        files.close()
    assert (tmp_path / "attempt-1/rank-00.stdout.log").read_text() == "short\n"


def test_a_folder_that_cannot_be_made_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--output: .*/file: "):
        LogFiles(tmp_path / "file", ["node-0"], Mask())
