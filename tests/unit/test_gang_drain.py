"""Hosts that are asked to leave a run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.node.gang import gang, gang_events, gang_orders
from orchestrator.node.gang.gang_events import End, Run, Stop
from orchestrator.node.gang.gang_state import Phase, State

NODES = [{"host": f"host-{number}", "nproc": 1} for number in range(3)]
SPARED = [*NODES, {"host": "host-3", "nproc": 1, "spare": True}]
GRACE = 30.0


def begun(nodes: list[dict[str, Any]], **options: Any) -> State:
    state = gang.begin(nodes, **options)
    for number in range(len(nodes)):
        state, _ = gang.step(state, gang_events.Joined(number, 1000.0))
    state, _ = gang.step(state, gang_events.StartRequested("10.0.0.1", 29500, 1000.0))
    return started(state, 1001.0)


def started(state: State, at: float) -> State:
    for number in state.team:
        state, _ = gang.step(state, gang_events.Started(number, state.attempt, at))
    return state


def drain(state: State, number: int, at: float = 2000.0) -> State:
    return gang.step(state, gang_events.Drain(number, "ann", GRACE, at))[0]


def exited(state: State, at: float, *numbers: int) -> State:
    for number in numbers:
        state, _ = gang.step(state, gang_events.Exited(number, state.attempt, True, at))
    return state


def test_a_drained_host_gives_its_place_to_a_spare_without_costing_a_restart() -> None:
    state = drain(begun(SPARED), 1)
    orders = [gang_orders.order_of(state, number) for number in range(3)]
    assert [(type(order), getattr(order, "grace", None)) for order in orders] == [(Stop, GRACE)] * 3
    assert gang_orders.label(state) == "restarting"
    state, actions = gang.step(exited(state, 2010.0, 0, 1, 2), gang_events.PortFound(29501, 2020.0))
    assert (state.team, state.restarts_used, state.failures) == ((0, 3, 2), 0, ())
    (end,) = [action.order for action in actions if action.node == 1]
    assert isinstance(end, End) and (end.verdict["state"], end.verdict["stopped_by"]) == ("stopped", "ann")
    state = exited(started(state, 2021.0), 3000.0, 0, 3, 2)
    assert state.verdict and state.verdict["state"] == "succeeded"


def test_without_a_spare_the_run_continues_with_fewer_hosts() -> None:
    state = exited(drain(begun(NODES, min_nodes=2), 1), 2010.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2020.0))
    assert state.team == (0, 2)
    state = started(state, 2021.0)
    assert drain(state, 2, 3000.0) == state  # two are the least


@pytest.mark.parametrize("number", [0, 1, 7])
def test_a_drain_that_the_run_cannot_survive_changes_nothing(number: int) -> None:
    state = begun(NODES)
    assert drain(state, number) == state


def test_a_drained_spare_ends_at_once_and_is_not_used() -> None:
    state, actions = gang.step(begun(SPARED), gang_events.Drain(3, "ann", GRACE, 2000.0))
    assert [(action.node, type(action.order)) for action in actions] == [(3, End)]
    assert state.phase is Phase.RUNNING
    state, _ = gang.step(state, gang_events.Lost(1, 2100.0))
    state = exited(state, 2101.0, 0, 2)
    assert state.verdict and state.verdict["state"] == "lost"


def test_a_host_that_is_lost_during_a_drain_is_the_first_failure_if_the_run_cannot_continue() -> None:
    state, _ = gang.step(drain(begun(SPARED), 1), gang_events.Lost(2, 2001.0))
    state = exited(state, 2010.0, 0, 1)
    assert state.verdict and (state.verdict["state"], state.verdict["first_failure"]["host"]) == ("lost", "host-2")


def test_a_stop_request_during_a_drain_ends_the_run() -> None:
    state, _ = gang.step(drain(begun(SPARED), 1), gang_events.StopRequested("bob", 5.0, 2001.0))
    state = exited(state, 2002.0, 0, 1, 2)
    assert state.verdict and (state.verdict["state"], state.verdict["stopped_by"]) == ("killed", "bob")


def test_a_drained_host_takes_no_part_though_its_attempt_failed_by_itself() -> None:
    state = begun(SPARED, max_restarts=1)
    failure = {"host": "host-2", "node": 2, "rank": 2, "what": "rank 2 failed"}
    state, _ = gang.step(state, gang_events.Failed(2, 1, failure, 2000.0))
    state = exited(drain(state, 1, 2000.5), 2001.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2010.0))
    assert (state.team, state.restarts_used) == ((0, 3, 2), 1)
    assert all(isinstance(gang_orders.order_of(state, number), Run) for number in state.team)
