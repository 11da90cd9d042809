"""A witness votes, and never takes part in an attempt."""

from __future__ import annotations

import pytest
from golden_files import assert_message

from orchestrator.node.gang import gang, gang_events, gang_orders
from orchestrator.node.gang.gang_events import Check, End, Wait
from orchestrator.node.gang.gang_state import NodePhase, Phase, State
from orchestrator.node.roles import narration

NODES = [
    {"host": "host-0", "nproc": 1},
    {"host": "host-1", "nproc": 1},
    {"host": "witness", "nproc": 0, "witness": True},
]
WITNESS = 2


def begun(min_nodes: int = 1, max_nodes: int = 3) -> State:
    state = gang.begin(NODES, 3, min_nodes, 600.0, max_nodes, has_gate=True)
    for number in range(len(NODES)):
        state = step(state, gang_events.Joined(number, 1000.0))
    state = step(state, gang_events.StartRequested("10.0.0.1", 29500, 1000.0))
    for number in state.team:
        state = step(state, gang_events.Started(number, 1, 1001.0))
    return state


def step(state: State, event: gang_events.Event) -> State:
    return gang.step(state, event)[0]


def test_it_waits_and_is_told_the_end() -> None:
    state = begun()
    assert (state.team, state.world_size, state.min_nodes) == ((0, 1), 2, 1)
    assert isinstance(gang_orders.order_of(state, WITNESS), Wait)
    for number in (0, 1):
        state = step(state, gang_events.Exited(number, 1, True, 1010.0))
    assert state.phase is Phase.OVER
    assert isinstance(gang_orders.order_of(state, WITNESS), End)


def test_it_neither_replaces_a_lost_host_nor_lets_the_team_grow() -> None:
    """Though the run may have three hosts, and continues with one."""
    state = step(begun(), gang_events.Lost(1, 1020.0))
    state = step(state, gang_events.Exited(0, 1, False, 1021.0))
    assert state.phase is Phase.RESTARTING
    assert not isinstance(gang_orders.order_of(state, WITNESS), Check)
    state = step(state, gang_events.Checked(0, 2, [], 1022.0))
    state = step(state, gang_events.PortFound(29501, 1040.0))
    assert (state.attempt, state.team) == (2, (0,))


def test_a_run_that_needs_all_its_hosts_waits_for_the_lost_one() -> None:
    state = step(begun(min_nodes=2, max_nodes=2), gang_events.Lost(1, 1020.0))
    state = step(state, gang_events.Exited(0, 1, False, 1021.0))
    assert gang_orders.label(state) == "waiting"


def test_its_loss_is_said_in_one_line_and_changes_nothing_else() -> None:
    before = begun()
    lost = step(before, gang_events.Lost(WITNESS, 1020.0))
    assert (lost.phase, lost.first_failure) == (Phase.RUNNING, None)
    (line,) = narration.lines(before, lost)
    assert_message("witness-lost", line)
    back = step(lost, gang_events.Joined(WITNESS, 1030.0))
    assert list(narration.lines(lost, back)) == ["witness is back"]
    back = step(back, gang_events.Exited(WITNESS, 1, False, 1031.0))
    assert back.nodes[WITNESS].phase is NodePhase.JOINED
    assert (back.phase, back.team) == (Phase.RUNNING, (0, 1))


def test_a_witness_that_comes_late_was_not_added() -> None:
    state = gang.begin(NODES, 3, 1, 600.0, 3)
    for number in (0, 1):
        state = step(state, gang_events.Joined(number, 1000.0))
    state = step(state, gang_events.StartRequested("10.0.0.1", 29500, 1000.0))
    assert list(narration.lines(state, step(state, gang_events.Joined(WITNESS, 1010.0)))) == []


def test_it_cannot_be_drained() -> None:
    state = begun()
    assert step(state, gang_events.Drain(WITNESS, "ann", 5.0, 1010.0)) == state


@pytest.mark.parametrize("head", [0, 1])
def test_the_run_continues_with_either_host_as_the_head(head: int) -> None:
    state = begun()
    if head == 1:
        state = step(state, gang_events.Elected(1, "10.0.0.2", 1020.0))
        state = step(state, gang_events.Exited(1, 1, False, 1021.0))
        state = step(state, gang_events.Checked(1, 2, [], 1022.0))
        state = step(state, gang_events.PortFound(29501, 1040.0))
        assert (state.attempt, state.team) == (2, (1,))
    assert state.nodes[WITNESS].node_rank is None
