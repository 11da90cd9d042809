"""What the head notes at a restart of snapshots that stay on a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until

from orchestrator.node.gang import gang
from orchestrator.node.gang.gang_events import Elected, Event, Exited, Joined, Lost, Noted, PortFound, StartRequested
from orchestrator.node.gang.gang_state import State
from orchestrator.node.roles.outputs_advice import OutputsAdvice

SPEC = {"node": 1, "name": "mine", "command": ["python", "-u", "train.py"], "resume": "none", "shared_output": None}


def step(state: State, *events: Event) -> State:
    for event in events:
        state, _ = gang.step(state, event)
    return state


def started() -> State:
    """On the hosts a, b and c, of which any two are enough."""
    nodes = [{"host": host, "nproc": 1, "spare": False} for host in "abc"]
    state = gang.begin(nodes, max_restarts=3, min_nodes=2, max_nodes=3, rejoin_timeout=600.0, elects=True)
    return step(state, *(Joined(number, 0.0) for number in range(3)), StartRequested("10.0.0.1", 29500, 0.0))


def without_head() -> State:
    """`a` was lost, and `b` leads."""
    return step(started(), Elected(1, "10.0.0.2", 50.0), Exited(1, 1, False, 51.0), Exited(2, 1, False, 51.0))


class Head:
    """On `b`."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.notes: list[str] = []
        self.advice = OutputsAdvice(str(folder), {**SPEC, **spec}, self._happens)

    def _happens(self, event: Noted) -> None:
        self.notes.append(event.note)

    def notes_at(self, state: State) -> State:
        """The state with the notes that follow at a restart."""
        self.notes.clear()
        self.advice.begin(state)
        wait_until(lambda: self.advice._thread is None or not self.advice._thread.is_alive(), 10.0, "it has looked")
        self.advice.advance(state, 60.0)
        return step(state, *(Noted(note, 60.0) for note in self.notes))


def test_a_lost_head_keeps_what_rank_0_saved_there(tmp_path: Path) -> None:
    head, state = Head(tmp_path / "home/runs/R"), without_head()
    state = head.notes_at(state)
    (note,) = head.notes
    assert "ran on a" in note and "runs on b" in note and "run.resume: newest" in note
    head.advice.advance(state, 61.0)
    assert len(head.notes) == 1


@pytest.mark.parametrize(
    "spec", [{"resume": "head"}, {"shared_output": "/nfs"}, {"command": ["python", "-u", "-m", "trainer"]}]
)
def test_nothing_is_noted_where_hosts_get_what_rank_0_saves(tmp_path: Path, spec: dict[str, Any]) -> None:
    head = Head(tmp_path / "home/runs/R", **spec)
    head.notes_at(without_head())
    assert head.notes == []


def test_nothing_is_noted_while_rank_0_stays_where_it_is(tmp_path: Path) -> None:
    head = Head(tmp_path / "home/runs/R", node=0)
    head.notes_at(step(started(), Lost(2, 50.0), Exited(0, 1, False, 51.0), Exited(1, 1, False, 51.0)))
    assert head.notes == []


def test_a_note_that_the_gang_does_not_have_yet_is_repeated(tmp_path: Path) -> None:
    """A head without a majority drops events."""
    head, state = Head(tmp_path / "home/runs/R"), without_head()
    head.notes_at(state)
    head.advice.advance(state, 61.0)
    assert len(head.notes) == 2 and len(set(head.notes)) == 1


def test_a_host_where_rank_0_ran_before_may_have_an_older_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "home/runs/R"
    (folder / "code/checkpoints").mkdir(parents=True)
    head = Head(folder, code={"sha256": "abc"})
    state = step(head.notes_at(without_head()), PortFound(29501, 60.0))
    assert state.attempt == 2 and state.team == (1, 2)
    (folder / "code/checkpoints/last.pt").touch()
    back = (Joined(0, 70.0), Exited(0, 2, True, 70.0))
    head.notes_at(step(state, *back, Exited(1, 2, False, 71.0), Exited(2, 2, False, 71.0)))
    (note,) = head.notes
    assert "b has" in note and "checkpoints/last.pt" in note and "(a, where" in note
