"""What a node keeps on disk of an election."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.node.gang.election_state import Ballot, Entry
from orchestrator.node.gang.gang_events import Tick
from orchestrator.node.roles.election_disk import ElectionDisk
from orchestrator.node.roles.gang_log import entry_of


def entry(epoch: int, at: float) -> Entry:
    return Entry(epoch, json.dumps(entry_of(Tick(at))))


A, B, C = entry(1, 1.0), entry(1, 2.0), entry(2, 3.0)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_nothing_is_there_before_the_run(tmp_path: Path) -> None:
    disk = ElectionDisk(str(tmp_path))
    assert disk.ballot() is None and disk.log() == ()


def test_the_ballot_survives(tmp_path: Path) -> None:
    ElectionDisk(str(tmp_path)).save(Ballot(3, 1, leads=False))
    ElectionDisk(str(tmp_path)).save(Ballot(4, None, leads=True))
    assert ElectionDisk(str(tmp_path)).ballot() == Ballot(4, None, leads=True)


def test_the_log_grows_and_is_cut(tmp_path: Path) -> None:
    disk = ElectionDisk(str(tmp_path))
    disk.write(0, (A, B))
    disk.write(2, (B,))
    assert ElectionDisk(str(tmp_path)).log() == (A, B, B)
    disk.write(1, (C,))
    assert ElectionDisk(str(tmp_path)).log() == (A, C)


def test_a_new_recorder_continues_the_log(tmp_path: Path) -> None:
    ElectionDisk(str(tmp_path)).write(0, (A,))
    disk = ElectionDisk(str(tmp_path))
    assert disk.log() == (A,)
    disk.write(1, (C,))
    assert ElectionDisk(str(tmp_path)).log() == (A, C)


def test_an_incomplete_line_is_not_part_of_the_log(tmp_path: Path) -> None:
    """It was never confirmed, because it was not on disk as a whole."""
    ElectionDisk(str(tmp_path)).write(0, (A, B))
    log = tmp_path / "gang.jsonl"
    log.write_bytes(log.read_bytes()[:-1])
    disk = ElectionDisk(str(tmp_path))
    assert disk.log() == (A,)
    disk.write(1, (C,))
    assert ElectionDisk(str(tmp_path)).log() == (A, C)


def test_what_a_full_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    disk = ElectionDisk(str(tmp_path))
    disk.write(0, (A,))
    with full_disk(size=(tmp_path / "gang.jsonl").stat().st_size + 10):
        disk.write(1, (B,))
    disk.write(2, (C,))
    assert ElectionDisk(str(tmp_path)).log() == (A, B, C)
