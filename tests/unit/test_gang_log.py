"""The events of the gang as a file, on a disk that is full for a while."""

from __future__ import annotations

from pathlib import Path

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


def test_an_event_that_a_full_disk_has_cut_short_takes_no_later_one_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.add(Joined(0, 1.0))
    with full_disk((tmp_path / NAME).stat().st_size + 10):
        log.add(Joined(1, 1.0))
        log.add(Joined(2, 1.0))
    log.add(Joined(3, 1.0))
    assert log.state == after(0, 1, 2, 3)
    assert open_log(tmp_path).state == after(0, 3)
