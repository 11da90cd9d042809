"""The events of the gang as a file, on a disk that is full for a while."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from test_election_disk import full_disk

from orchestrator.node.gang import gang
from orchestrator.node.gang.gang_events import Joined
from orchestrator.node.gang.gang_state import State
from orchestrator.node.roles.gang_log import NAME, GangLog

BEGUN = gang.begin([{"host": host, "nproc": 1} for host in "abcd"])


def open_log(folder: Path) -> GangLog:
    return GangLog(str(folder), BEGUN, lambda *_: None)


def after(*nodes: int) -> State:
    """The state when the recorders of these nodes have joined."""
    state = BEGUN
    for node in nodes:
        state, _ = gang.step(state, Joined(node, 1.0))
    return state


def test_the_events_are_known_although_the_file_cannot_be_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log(tmp_path).add(Joined(0, 1.0))
    with (tmp_path / NAME).open("a") as file:
        file.write('{"torn')
    open_file = os.open

    def open_to_read(path: str, flags: int, *mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_to_read)
    log = open_log(tmp_path)
    log.add(Joined(1, 1.0))
    assert log.state == after(0, 1)


def test_an_event_that_a_full_disk_has_cut_short_takes_no_later_one_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.add(Joined(0, 1.0))
    with full_disk((tmp_path / NAME).stat().st_size + 10):
        log.add(Joined(1, 1.0))
        log.add(Joined(2, 1.0))
    log.add(Joined(3, 1.0))
    assert log.state == after(0, 1, 2, 3)
    assert open_log(tmp_path).state == after(0, 3)
