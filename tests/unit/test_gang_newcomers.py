"""Hosts that are added to a run."""

from __future__ import annotations

from typing import Any

import pytest
from test_gang_drain import NODES, SPARED, begun, drain, exited, started

from orchestrator.node.gang import gang, gang_events, gang_orders, newcomers
from orchestrator.node.gang.gang_events import Wait
from orchestrator.node.gang.gang_state import Phase, State


def added(state: State, host: str = "host-9", at: float = 2000.0) -> State:
    return gang.step(state, gang_events.Added(host, 1, "ann", at))[0]


def with_one_more(nodes: list[dict[str, Any]], **options: Any) -> State:
    """Of a run on `nodes`, with a host that was added and has joined."""
    state = added(begun(nodes, **options))
    return gang.step(state, gang_events.Joined(len(nodes), 2001.0))[0]


def test_a_host_that_is_added_waits_as_a_spare() -> None:
    state = added(begun(NODES))
    assert (len(state.nodes), state.team, newcomers.number_of(state, "host-9")) == (4, (0, 1, 2), 3)
    state, actions = gang.step(state, gang_events.Joined(3, 2001.0))
    (action,) = actions
    assert action.node == 3 and isinstance(action.order, Wait)
    assert newcomers.number_of(state, "host-9") is None  # it takes part now


def test_it_takes_the_place_of_a_lost_host() -> None:
    state = gang.step(with_one_more(NODES), gang_events.Lost(1, 2100.0))[0]
    state = exited(state, 2101.0, 0, 2)
    assert state.phase is Phase.RESTARTING
    state, _ = gang.step(state, gang_events.PortFound(29501, 2200.0))
    assert (state.team, state.restarts_used) == ((0, 3, 2), 0)


def test_with_a_maximum_of_nodes_the_next_attempt_takes_it() -> None:
    state = with_one_more(NODES, min_nodes=2, max_nodes=4, max_restarts=1)
    failure = {"host": "host-1", "node": 1, "rank": 1, "what": "exit code 1"}
    state = gang.step(state, gang_events.Failed(1, 1, failure, 2100.0))[0]
    state, _ = gang.step(exited(state, 2101.0, 0, 1, 2), gang_events.PortFound(29501, 2200.0))
    assert state.team == (0, 1, 2, 3) and started(state, 2201.0).world_size == 4


def test_a_host_that_never_joined_is_added_again_under_its_number() -> None:
    state = added(added(begun(NODES)))
    assert len(state.nodes) == 4 and newcomers.number_of(state, "host-9") == 3
    assert newcomers.number_of(added(drain(state, 3)), "host-9") == 3
    state = added(with_one_more(NODES))
    assert len(state.nodes) == 4 and newcomers.number_of(state, "host-9") is None


@pytest.mark.parametrize("host", ["host-0", "host-1", "host-3"])
def test_a_host_of_the_run_is_not_added(host: str) -> None:
    state = begun(SPARED)
    assert added(state, host) == state and newcomers.number_of(state, host) is None


def test_no_host_is_added_to_a_run_that_is_stopping() -> None:
    state = gang.step(begun(NODES), gang_events.StopRequested("ann", 30.0, 1999.0))[0]
    assert added(state) == state
    assert gang_orders.label(state) == "stopping"


def test_it_votes_from_its_first_link_on_until_it_has_left() -> None:
    state = added(begun(NODES))
    assert newcomers.voters(state) == {0, 1, 2}
    state = gang.step(state, gang_events.Joined(3, 2001.0))[0]
    assert newcomers.voters(state) == {0, 1, 2, 3}
    lost = gang.step(state, gang_events.Lost(3, 2002.0))[0]
    assert newcomers.voters(lost) == {0, 1, 2, 3}
    drained = drain(state, 3)
    assert newcomers.voters(drained) == {0, 1, 2}  # and only then it ends
    assert newcomers.voters(gang.step(drained, gang_events.Lost(3, 2003.0))[0]) == {0, 1, 2}
