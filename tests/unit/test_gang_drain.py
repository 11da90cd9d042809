"""Hosts that are asked to leave a run."""

from __future__ import annotations

from typing import Any

import pytest
from golden_files import assert_message
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.gang import drain as drain_rules
from orchestrator.node.gang import gang, gang_events, gang_orders, newcomers, team
from orchestrator.node.gang.gang_events import End, Run, Stop, Wait
from orchestrator.node.gang.gang_state import NodePhase, Phase, State
from orchestrator.node.roles import narration

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
    state = exited(state, 2010.0, 0, 1, 2)
    assert drain_rules.drained_hosts(state) == ["host-1"]
    state, actions = gang.step(state, gang_events.PortFound(29501, 2020.0))
    assert drain_rules.drained_hosts(state) == []
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


ELECTING: dict[str, Any] = {"max_restarts": 3, "rejoin_timeout": 600.0, "elects": True}


def test_a_host_whose_leaving_takes_the_majority_is_not_drained() -> None:
    state, _ = gang.step(begun(NODES, **ELECTING, min_nodes=1), gang_events.Lost(2, 1500.0, 1492.0))
    state, _ = gang.step(exited(state, 1501.0, 0, 1), gang_events.PortFound(29501, 1510.0))
    state = started(state, 1511.0)
    assert state.team == (0, 1) and state.phase is Phase.RUNNING
    assert [drain_rules.can_leave(state, number) for number in range(3)] == [False, False, True]
    assert drain(state, 1) == state


def test_of_two_hosts_that_stay_only_the_head_votes_so_that_it_can_lose_the_other_one() -> None:
    state = exited(drain(begun(NODES, **ELECTING, min_nodes=1), 1), 2010.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2020.0))
    assert newcomers.voters(state) == {0, 2}  # the drained host first: the head might leave, too
    state, _ = gang.step(state, gang_events.Voters([0, 2], 2022.0))
    assert newcomers.voters(state) == {0}
    state, _ = gang.step(state, gang_events.Voters([0], 2022.0))
    assert newcomers.voters(state) == {0}


def test_a_head_that_votes_alone_hands_over_once_the_other_one_votes_too() -> None:
    state = exited(drain(begun(NODES, **ELECTING, min_nodes=1), 2), 2010.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2020.0))
    state = started(state, 2021.0)
    for voters in ([0, 1], [0]):
        state, _ = gang.step(state, gang_events.Voters(voters, 2022.0))
    state = exited(drain(state, 0, 2030.0), 2031.0, 0, 1)
    assert newcomers.voters(state) == {0, 1}
    assert drain_rules.has_to_resign(state) and not drain_rules.can_resign(state)
    state, _ = gang.step(state, gang_events.Voters([0, 1], 2032.0))
    assert drain_rules.can_resign(state)
    state, _ = gang.step(state, gang_events.Elected(1, "10.0.0.2", 100.0))
    state, _ = gang.step(state, gang_events.PortFound(29501, 101.0))
    assert state.team == (1,) and newcomers.voters(state) == {1}


def test_a_head_that_is_drained_hands_over() -> None:
    state = drain(begun(SPARED, **ELECTING), 0)
    assert state.phase is Phase.STOPPING and state.nodes[0].leaves
    state = exited(state, 2010.0, 0, 1, 2)
    assert drain_rules.has_to_resign(state) and gang_orders.label(state) == "restarting"
    assert not team.restart_is_due(state, 5000.0)  # this head begins no other attempt
    state, _ = gang.step(state, gang_events.Tick(5000.0))
    assert state.phase is Phase.RESTARTING  # and does not wait for anybody
    state, _ = gang.step(state, gang_events.Elected(1, "10.0.0.2", 100.0))
    assert (state.head, state.first_failure, state.failures) == (1, None, ())
    state, actions = gang.step(state, gang_events.PortFound(29501, 101.0))
    assert (state.team, state.restarts_used) == ((1, 3, 2), 0)
    assert newcomers.voters(state) == {1, 2, 3}
    state, actions = gang.step(state, gang_events.Voters([1, 2, 3], 102.0))
    (end,) = [action.order for action in actions if action.node == 0]
    assert isinstance(end, End) and end.verdict["state"] == "stopped"


def test_drained_hosts_end_when_they_do_not_vote_any_more() -> None:
    """Two of five that leave at once, and one that is lost, would leave no majority."""
    nodes = [*NODES, *({"host": f"host-{number}", "nproc": 1, "spare": True} for number in (3, 4))]
    state = drain(drain(begun(nodes, **ELECTING), 3), 4)
    assert newcomers.voters(state) == {0, 1, 2}
    assert [type(gang_orders.order_of(state, number)) for number in (3, 4)] == [Wait, Wait]
    state, actions = gang.step(state, gang_events.Voters([0, 1, 2, 4], 2001.0))
    assert [(action.node, type(action.order)) for action in actions] == [(3, End)]


def test_a_drained_host_has_left_also_if_the_run_ends_before_it_stops_voting() -> None:
    state = exited(drain(begun(SPARED, **ELECTING), 1), 2010.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2020.0))
    state, actions = gang.step(exited(started(state, 2021.0), 2022.0, 0, 3), gang_events.Exited(2, 2, True, 2022.0))
    verdicts = {action.node: action.order.verdict["state"] for action in actions if isinstance(action.order, End)}
    assert verdicts == {1: "stopped", 2: "succeeded", 3: "succeeded"}


def test_a_spare_may_follow_the_head() -> None:
    state = exited(drain(begun(SPARED, **ELECTING), 0), 2010.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.Elected(3, "10.0.0.4", 100.0))
    state, _ = gang.step(state, gang_events.PortFound(29501, 101.0))
    assert state.team == (3, 1, 2)


def test_an_elected_head_without_ranks_hands_over_too() -> None:
    state = begun([*SPARED, {"host": "host-4", "nproc": 1, "spare": True}], **ELECTING)
    state, _ = gang.step(state, gang_events.Elected(3, "10.0.0.4", 100.0))
    state = drain(exited(state, 101.0, 1, 2), 3, 102.0)
    assert drain_rules.has_to_resign(state)
    assert isinstance(gang_orders.order_of(state, 3), Wait)  # it ends on the word of the next head


@pytest.mark.parametrize(
    ("nodes", "options"),
    [(NODES, {**ELECTING, "min_nodes": 3}), (SPARED, {**ELECTING, "elects": False}), (NODES[:1], ELECTING)],
)
def test_a_head_that_nobody_can_follow_is_not_drained(nodes: list[dict[str, Any]], options: dict[str, Any]) -> None:
    state = begun(nodes, **options)
    assert drain(state, 0) == state


def test_nobody_else_leaves_while_the_head_hands_over() -> None:
    state = drain(begun(SPARED, **ELECTING, min_nodes=1), 0)
    assert drain(state, 1) == state


def test_a_head_that_fails_as_it_hands_over_is_lost() -> None:
    """Its ranks may still run."""
    state = drain(begun(SPARED, **ELECTING), 0)
    state, _ = gang.step(state, gang_events.Elected(1, "10.0.0.2", 100.0))
    assert state.nodes[0].phase is NodePhase.LOST
    state = exited(state, 101.0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 110.0))
    assert state.team == (1, 3, 2)


def test_a_head_that_was_to_leave_and_leads_again_resigns_again() -> None:
    state = exited(drain(begun(SPARED, **ELECTING), 0), 2010.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.Elected(0, "10.0.0.1", 2020.0))
    assert drain_rules.has_to_resign(state)


def test_what_the_log_says_of_a_head_that_hands_over() -> None:
    said: list[str] = []
    state = begun(SPARED, **ELECTING)
    events = [
        gang_events.Drain(0, "ann", GRACE, 2000.0),
        *(gang_events.Exited(number, 1, True, 2001.0) for number in range(3)),
        gang_events.Elected(1, "10.0.0.2", 100.0),
        gang_events.PortFound(29501, 101.0),
    ]
    for event in events:
        before, (state, _) = state, gang.step(state, event)
        said += narration.lines(before, state)
    assert_message("drained-head", "\n".join(said))


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


def test_a_loss_while_the_head_hands_over_ends_the_run_if_no_restart_is_left() -> None:
    """The next head says so at once. It has nobody to wait for: the lost host may not take part again."""
    state = drain(begun(NODES, **{**ELECTING, "max_restarts": 0}, min_nodes=2), 0)
    state, _ = gang.step(state, gang_events.Lost(2, 2001.0, 1993.0))
    state = exited(state, 2010.0, 0, 1)
    assert drain_rules.has_to_resign(state)  # the others must not elect a head that does not lead
    before, (state, _) = state, gang.step(state, gang_events.Elected(1, "10.0.0.2", 100.0))
    assert state.verdict and (state.verdict["state"], state.verdict["first_failure"]["host"]) == ("lost", "host-2")
    assert state.verdict["no_restart_reason"] == "max_restarts is 0"
    assert_message("drained-head-no-restart", "\n".join(narration.lines(before, state)))


def test_a_hand_over_with_no_restart_left_costs_none() -> None:
    """Also if a host is lost meanwhile, as long as there are enough without it."""
    state = drain(begun(SPARED, **{**ELECTING, "max_restarts": 0}, min_nodes=2), 0)
    state, _ = gang.step(state, gang_events.Lost(2, 2001.0, 1993.0))
    state, _ = gang.step(exited(state, 2010.0, 0, 1), gang_events.Elected(1, "10.0.0.2", 100.0))
    state, _ = gang.step(state, gang_events.PortFound(29501, 101.0))
    assert (state.phase, state.team, state.restarts_used) == (Phase.RUNNING, (1, 3), 0)


@pytest.mark.parametrize("leaving", [0, 1])
def test_a_run_that_waits_in_vain_after_a_drain_was_not_killed(leaving: int) -> None:
    """Somebody asked for the drain, and nobody for the end of the run."""
    state, _ = gang.step(drain(begun(NODES, **ELECTING, min_nodes=2), leaving), gang_events.Lost(2, 2001.0, 1993.0))
    state = exited(state, 2010.0, 0, 1)
    if leaving == 0:
        state, _ = gang.step(state, gang_events.Elected(1, "10.0.0.2", 2010.0))
    assert gang_orders.label(state) == "waiting"
    state, _ = gang.step(state, gang_events.Tick(2010.0 + ELECTING["rejoin_timeout"] + 1.0))
    assert state.verdict and (state.verdict["state"], state.verdict["first_failure"]["host"]) == ("lost", "host-2")


def test_a_run_that_waits_in_vain_for_a_healthy_host_after_a_drain_failed() -> None:
    state = exited(drain(begun(NODES, **ELECTING, min_nodes=2, has_gate=True), 1), 2010.0, 0, 1, 2)
    problems = [{"code": "disk-full", "text": "/ is full"}]
    state, _ = gang.step(state, gang_events.Checked(2, 2, problems, 2011.0))
    assert gang_orders.label(state) == "waiting"
    state, _ = gang.step(state, gang_events.Tick(2011.0 + ELECTING["rejoin_timeout"] + 1.0))
    assert state.verdict and (state.verdict["state"], state.verdict["first_failure"]["host"]) == ("failed", "host-2")


def test_no_host_is_drained_for_which_only_an_unfit_one_is_left() -> None:
    state = begun(SPARED, max_restarts=2, has_gate=True)
    failure = {"host": "host-1", "node": 1, "rank": 1, "what": "rank 1 failed"}
    state = exited(gang.step(state, gang_events.Failed(1, 1, failure, 1500.0))[0], 1501.0, 0, 1, 2)
    for number in range(4):
        problems = [{"code": "disk-full", "text": "/ is full"}] if number == 1 else []
        state, _ = gang.step(state, gang_events.Checked(number, 2, problems, 1502.0))
    state, _ = gang.step(state, gang_events.PortFound(29501, 1503.0))
    state = started(state, 1504.0)
    assert state.team == (0, 3, 2)
    assert drain(state, 2) == state


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


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_failed_if_a_host_does_not_stop_for_a_drain(number: int) -> None:
    state = exited(drain(begun(SPARED), 1), 2010.0, *({0, 1, 2} - {number}))
    state, _ = gang.step(state, gang_events.Tick(2000.0 + GRACE + gang.STOP_WINDOW + 1.0))
    assert state.verdict and state.verdict["state"] == "failed"
    assert state.verdict["first_failure"]["host"] == f"host-{number}"


def test_a_spare_is_not_drained_that_takes_the_place_of_a_drained_host() -> None:
    state = drain(begun(SPARED), 1)
    assert drain(state, 3) == state


def test_the_loss_of_the_spare_that_a_drain_needs_is_the_first_failure() -> None:
    state, _ = gang.step(drain(begun(SPARED), 1), gang_events.Lost(3, 2001.0))
    state = exited(state, 2010.0, 0, 1, 2)
    assert state.verdict and (state.verdict["state"], state.verdict["first_failure"]["host"]) == ("lost", "host-3")


def event_of(kind: str, number: int, attempt: int, at: float) -> gang_events.Event:
    match kind:
        case "Drain":
            return gang_events.Drain(number, "ann", GRACE, at)
        case "Lost":
            return gang_events.Lost(number, at)
        case "Joined":
            return gang_events.Joined(number, at)
        case "Restarted":
            return gang_events.HostRestarted(number, at)
        case "Elected":
            return gang_events.Elected(number, "10.0.0.2", at)
        case "Unfit":
            return gang_events.Checked(number, attempt + 1, [{"code": "disk-full", "text": "/ is full"}], at)
        case "PortFound":
            return gang_events.PortFound(29501, at)
    return gang_events.Exited(number, attempt, True, at)


KINDS = ["Drain", "Lost", "Joined", "Restarted", "Elected", "Unfit", "PortFound", "exited", "all exited"]
HISTORIES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.sampled_from([0.1, 3.0, 40.0])), max_size=20
)


@settings(max_examples=100)
@given(HISTORIES, st.integers(1, 3), st.integers(0, 1), st.sampled_from([0.0, 600.0]), st.booleans())
def test_no_run_was_killed_that_nobody_asked_to_stop(
    history: list[tuple[str, int, float]], min_nodes: int, max_restarts: int, rejoin: float, has_gate: bool
) -> None:
    nodes = [*SPARED, {"host": "host-4", "nproc": 1, "spare": True}]
    state = begun(
        nodes,
        max_restarts=max_restarts,
        min_nodes=min_nodes,
        max_nodes=3,
        rejoin_timeout=rejoin,
        has_gate=has_gate,
        elects=True,
    )
    at = 2000.0
    for kind, number, pause in history:
        at += pause
        for one in range(5) if kind == "all exited" else [number]:
            if kind != "Lost" or one != state.head:
                state, _ = gang.step(state, event_of(kind, one, state.attempt, at))
    for second in (1, 2000, 3000):  # what happens if nothing happens any more
        state, _ = gang.step(state, gang_events.Tick(at + second))
    assert state.verdict is None or state.verdict["state"] != "killed"
