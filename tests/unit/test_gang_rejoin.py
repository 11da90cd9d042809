"""Nodes that are lost and come back, in any order: what holds in each such run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.gang import gang, gang_events, gang_orders, team
from orchestrator.node.gang.gang_events import Event, Run, Stop
from orchestrator.node.gang.gang_state import KILL_WINDOW, NodePhase, Phase, State

NODES = [{"host": f"host-{number}", "nproc": number + 1} for number in range(3)]
SPARED = [*NODES, {"host": "host-3", "nproc": 2, "spare": True}]
REJOIN = 600.0


def begun(nodes: list[dict[str, object]], max_restarts: int, min_nodes: int = 3, rejoin: float = REJOIN) -> State:
    state = gang.begin(nodes, max_restarts, min_nodes, rejoin, 3)
    for number in range(len(nodes)):
        state, _ = gang.step(state, gang_events.Joined(number, 1000.0))
    state, _ = gang.step(state, gang_events.StartRequested("10.0.0.1", 29500, 1000.0))
    return started(state, 1001.0)


def started(state: State, at: float) -> State:
    for number in state.team:
        state, _ = gang.step(state, gang_events.Started(number, state.attempt, at))
    return state


def exited(state: State, at: float, *numbers: int) -> State:
    for number in numbers:
        state, _ = gang.step(state, gang_events.Exited(number, state.attempt, False, at))
    return state


def waiting() -> State:
    """Of three hosts the second is lost."""
    return exited(gang.step(begun(NODES, 3), gang_events.Lost(1, 2000.0))[0], 2001.0, 0, 2)


def test_a_run_that_waits_shows_so_and_looks_for_no_port() -> None:
    state = waiting()
    assert (gang_orders.label(state), team.missing(state)) == ("waiting", ("host-1",))
    assert not team.restart_is_due(state, 2300.0)
    state, _ = gang.step(state, gang_events.Joined(1, 2300.0))
    assert gang_orders.label(state) == "waiting"
    state = exited(state, 2300.1, 1)
    assert gang_orders.label(state) == "restarting"
    assert team.restart_is_due(state, 2300.1)


def test_a_host_that_comes_back_has_to_stop_before_it_takes_part() -> None:
    """What it reports of an earlier attempt proves nothing: only after Stop(n) it starts no attempt up to n."""
    state, actions = gang.step(waiting(), gang_events.Joined(1, 2010.0))
    assert [(action.node, type(action.order)) for action in actions] == [(1, Stop)]
    for event in (gang_events.Started(1, 1, 2010.1), gang_events.Exited(1, 0, False, 2010.2)):
        state, actions = gang.step(state, event)
        assert (actions, state.nodes[1].phase) == ((), NodePhase.RETURNED)


def test_a_spare_that_came_back_may_repeat_what_it_reported() -> None:
    """A status is always complete, so it says again how the attempt ended that was stopped on return."""
    state = exited(gang.step(begun(SPARED, 1), gang_events.Lost(1, 2000.0))[0], 2001.0, 0, 2)
    state = started(gang.step(state, gang_events.PortFound(29501, 2010.0))[0], 2011.0)
    state = exited(gang.step(state, gang_events.Joined(1, 2020.0))[0], 2020.1, 1)
    assert state.nodes[1].phase is NodePhase.JOINED
    failure = {"host": "host-1", "node": 1, "rank": None, "what": "ended"}
    for event in (
        gang_events.Started(1, 2, 2020.2),
        gang_events.Exited(1, 2, False, 2020.2),
        gang_events.Failed(1, 2, failure, 2020.2),
    ):
        assert gang.step(state, event) == (state, ())


def test_without_a_rejoin_timeout_a_lost_host_has_no_way_back() -> None:
    state = gang.begin(SPARED, 1, 3)
    for number in range(4):
        state, _ = gang.step(state, gang_events.Joined(number, 1000.0))
    state = started(gang.step(state, gang_events.StartRequested("10.0.0.1", 29500, 1000.0))[0], 1001.0)
    state = exited(gang.step(state, gang_events.Lost(1, 2000.0))[0], 2001.0, 0, 2)
    state, actions = gang.step(state, gang_events.Joined(1, 2001.5))
    assert (actions, state.nodes[1].phase) == ((), NodePhase.LOST)


def test_the_wait_begins_with_the_loss_that_makes_it_necessary() -> None:
    """Here with that of the spare, long after the first failure."""
    state = exited(gang.step(begun(SPARED, 3), gang_events.Lost(1, 2000.0))[0], 2001.0, 0, 2)
    state, _ = gang.step(state, gang_events.Lost(3, 2500.0))
    assert gang_orders.label(state) == "waiting"
    assert gang.step(state, gang_events.Tick(2500.0 + REJOIN - 1))[0].verdict is None
    verdict = gang.step(state, gang_events.Tick(2500.0 + REJOIN + 1))[0].verdict
    assert verdict and verdict["state"] == "lost" and "host-1" in verdict["no_restart_reason"]


def test_a_restart_counts_only_if_a_lost_host_takes_part_again() -> None:
    state = exited(gang.step(begun(SPARED, 1), gang_events.Lost(1, 2000.0))[0], 2001.0, 0, 2)
    state = started(gang.step(state, gang_events.PortFound(29501, 2010.0))[0], 2011.0)
    assert state.restarts_used == 0
    state = exited(gang.step(state, gang_events.Lost(3, 3000.0))[0], 3001.0, 0, 2)
    state = exited(gang.step(state, gang_events.Joined(3, 3010.0))[0], 3010.1, 3)
    state = started(gang.step(state, gang_events.PortFound(29502, 3020.0))[0], 3021.0)
    assert (state.team, state.restarts_used) == ((0, 3, 2), 1)
    state = exited(gang.step(state, gang_events.Lost(2, 4000.0))[0], 4001.0, 0, 3)
    assert state.verdict and state.verdict["state"] == "lost"


def test_with_the_budget_spent_a_run_continues_with_fewer_hosts_though_the_lost_one_is_back() -> None:
    state = gang.step(begun(NODES, 0, min_nodes=2), gang_events.Lost(1, 2000.0))[0]
    state = exited(gang.step(state, gang_events.Joined(1, 2000.1))[0], 2001.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2010.0))
    assert (state.team, state.restarts_used) == ((0, 2), 0)


def test_the_head_is_waited_for_and_never_replaced() -> None:
    """Its host was restarted: the new recorder replays the log, and the new guard knows of no attempt."""
    state = exited(gang.step(begun(SPARED, 1), gang_events.HostRestarted(0, 2000.0))[0], 2001.0, 1, 2)
    assert gang_orders.label(state) == "waiting"
    state = exited(state, 2001.0, 0)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2010.0))
    assert state.team == (0, 1, 2)


def test_a_late_report_of_a_restart_ends_no_later_attempt() -> None:
    """The new guard may start its ranks at any moment, and the gang must wait for them before another attempt."""
    state = exited(gang.step(begun(SPARED, 1), gang_events.HostRestarted(0, 2000.0, 1))[0], 2001.0, 0, 1, 2)
    state, _ = gang.step(state, gang_events.PortFound(29501, 2010.0))
    assert state.attempt == 2
    assert gang.step(state, gang_events.HostRestarted(0, 2010.1, 1)) == (state, ())
    state, _ = gang.step(state, gang_events.HostRestarted(0, 2010.1, 2))
    assert gang_orders.label(state) == "stopping"


def test_a_guard_that_is_killed_for_good_after_its_host_came_back_is_not_counted_on() -> None:
    state, _ = gang.step(waiting(), gang_events.Joined(1, 2010.0))
    gone = {"host": "host-1", "node": 1, "rank": None, "what": "the guard was killed", "gone": True}
    state = exited(gang.step(state, gang_events.Failed(1, 1, gone, 2011.0))[0], 2011.0, 1)
    assert (gang_orders.label(state), state.nodes[1].phase) == ("waiting", NodePhase.LOST)


KINDS = ["Lost", "Joined", "Restarted", "Failed", "exited", "fenced", "PortFound", "Tick"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, float, bool]]:
    step = st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.sampled_from([0.1, 3.0, 40.0]), st.booleans())
    return draw(st.lists(step, max_size=40))


def event_of(kind: str, number: int, attempt: int, at: float) -> Event:
    match kind:
        case "Lost":
            return gang_events.Lost(max(1, number), at)
        case "Joined":
            return gang_events.Joined(number, at)
        case "Restarted":
            return gang_events.HostRestarted(number, at)
        case "Failed":
            failure = {"host": f"host-{number}", "node": number, "what": "failed", "rank": None}
            return gang_events.Failed(number, attempt, failure, at)
        case "PortFound":
            return gang_events.PortFound(29501, at)
        case "Tick":
            return gang_events.Tick(at)
    return gang_events.Exited(number, attempt, False, at, kind == "fenced")


def play(history: list[tuple[str, int, float, bool]], state: State) -> list[tuple[State, Event, State]]:
    played, at = [], 1001.0
    for kind, number, pause, answers in history:
        at += pause
        events = [event_of(kind, number, state.attempt, at)]
        if answers:  # the nodes that have a link obey at once
            events += [gang_events.Exited(one, state.attempt, False, at) for one in range(4)]
        for event in events:
            if isinstance(event, gang_events.Exited) and state.phase is Phase.RUNNING and answers:
                continue
            after, _ = gang.step(state, event)
            played.append((state, event, after))
            state = after
    return played


@settings(max_examples=200)
@given(histories(), st.integers(1, 3), st.integers(0, 3))
def test_only_nodes_that_run_nothing_else_take_part_in_an_attempt(
    history: list[tuple[str, int, float, bool]], min_nodes: int, max_restarts: int
) -> None:
    for before, _, after in play(history, begun(SPARED, max_restarts, min_nodes)):
        assert after.restarts_used <= max_restarts
        assert after.team[0] == 0
        assert len(set(after.team)) == len(after.team)
        if after.attempt > before.attempt:
            assert min_nodes <= len(after.team) <= 3
            assert {before.nodes[number].phase for number in after.team} <= {NodePhase.EXITED, NodePhase.JOINED}
            assert sum(after.nodes[number].nproc for number in after.team) == after.world_size
        elif before.first_failure is not None:
            assert after.first_failure == before.first_failure
        if before.verdict is not None:
            assert after.verdict == before.verdict
        for number, node in enumerate(after.nodes):
            if node.phase in (NodePhase.LOST, NodePhase.RETURNED):
                assert not isinstance(gang_orders.order_of(after, number), Run)


@settings(max_examples=200)
@given(histories(), st.integers(1, 3), st.integers(0, 3))
def test_every_run_ends_or_continues_once_all_nodes_are_back(
    history: list[tuple[str, int, float, bool]], min_nodes: int, max_restarts: int
) -> None:
    played = play(history, begun(SPARED, max_restarts, min_nodes))
    state = played[-1][2] if played else begun(SPARED, max_restarts, min_nodes)
    at = 10_000.0
    for number in range(4):
        state, _ = gang.step(state, gang_events.Joined(number, at))
    for second in range(40):
        state = exited(state, at + second, *range(4)) if state.phase is not Phase.RUNNING else state
        state, _ = gang.step(state, gang_events.PortFound(29501, at + second))
    assert state.phase in (Phase.RUNNING, Phase.OVER)
    for second in range(12):
        state, _ = gang.step(state, gang_events.StopRequested("ann", 0.0, at + 100.0 + 5 * second))
    assert state.verdict is not None


@settings(max_examples=100)
@given(histories())
def test_a_replay_of_the_log_gives_the_same_state(history: list[tuple[str, int, float, bool]]) -> None:
    played = play(history, begun(SPARED, 2))
    state = begun(SPARED, 2)
    for before, event, after in played:
        if after != before:
            entry = json.loads(json.dumps([gang_events.event_name(event), event._asdict()]))
            state, _ = gang.step(state, gang_events.EVENTS[entry[0]](**entry[1]))
    assert state == (played[-1][2] if played else begun(SPARED, 2))


@pytest.mark.parametrize("phase", ["waiting", "over"])
def test_a_restart_of_a_host_before_the_start_or_after_the_end_is_no_news(phase: str) -> None:
    state = gang.begin(NODES, 3, 3, REJOIN, 3)
    if phase == "over":
        state, _ = gang.step(begun(NODES, 3), gang_events.StopRequested("ann", 0.0, 2000.0))
        state = exited(state, 2001.0, 0, 1, 2)
    assert state.phase.value == phase
    assert gang.step(state, gang_events.HostRestarted(1, 2002.0)) == (state, ())


def test_no_attempt_begins_while_the_ranks_of_a_lost_host_may_still_be_killed() -> None:
    state = exited(begun(SPARED, 3), 2000.0, 0, 2, 1)
    state, _ = gang.step(state, gang_events.Lost(1, 2004.0))
    assert not team.restart_is_due(state, 2004.0 + KILL_WINDOW - 0.1)
    assert team.restart_is_due(state, 2004.0 + KILL_WINDOW)


def test_time_in_which_the_head_could_not_decide_does_not_count() -> None:
    state, _ = gang.step(begun(NODES, 3), gang_events.Lost(1, 2000.0))
    late = 2000.0 + gang.STOP_WINDOW + 60.0
    assert gang.step(state, gang_events.Tick(late))[0].phase is Phase.OVER
    state, _ = gang.step(state, gang_events.Resumed(late))
    assert exited(state, late + 1, 0, 2).phase is Phase.RESTARTING


def test_an_old_head_that_is_back_takes_the_seat_of_a_lost_host() -> None:
    """Its own seat has gone to the new head, which was the spare."""
    state, _ = gang.step(begun(SPARED, 3), gang_events.Elected(3, "10.0.0.4", 2000.0))
    state = exited(gang.step(state, gang_events.Lost(1, 2008.0))[0], 2008.1, 2)
    assert team.next_team(state) is None
    state = exited(gang.step(state, gang_events.Joined(0, 2010.0))[0], 2010.1, 0)
    assert team.next_team(state) == (3, 0, 2)


def test_a_spare_takes_the_seat_of_the_host_that_is_still_lost() -> None:
    """Two hosts were lost, and the first is back: with the spare in its place, the seat of the second stayed empty."""
    state, _ = gang.step(begun(SPARED, 3), gang_events.Lost(1, 2000.0))
    state = exited(gang.step(state, gang_events.Lost(2, 2000.1))[0], 2000.2, 0)
    state = exited(gang.step(state, gang_events.Joined(1, 2000.3))[0], 2000.4, 1)
    assert team.next_team(state) == (0, 1, 3)


def test_a_host_that_failed_too_often_takes_part_rather_than_nobody() -> None:
    """It gave its place to the spare, which is lost later."""
    state = begun(SPARED, 5)
    for attempt, at in ((1, 1100.0), (2, 1200.0)):
        failure = {"host": "host-1", "node": 1, "rank": 1, "what": "exit code 1"}
        state, _ = gang.step(state, gang_events.Failed(1, attempt, failure, at))
        state, _ = gang.step(exited(state, at + 1, *state.team), gang_events.PortFound(29501, at + 10))
        state = started(state, at + 11)
    assert state.team == (0, 3, 2)
    state = exited(gang.step(state, gang_events.Lost(3, 1300.0))[0], 1301.0, 0, 2)
    assert team.next_team(state) == (0, 1, 2)


def restarting_with_a_new_head(elected_at: float) -> State:
    """Two hosts are left. The old head, whose clock was an hour ahead, had just counted another host as lost."""
    state, _ = gang.step(begun(SPARED, 3), gang_events.Lost(1, 5600.0))
    state, _ = gang.step(state, gang_events.Elected(2, "10.0.0.3", elected_at))
    state = exited(state, elected_at + 0.1, 2)
    return gang.step(state, gang_events.Joined(1, elected_at + 0.2))[0]


def test_a_new_head_does_not_wait_by_the_clock_of_the_old_one() -> None:
    state = exited(restarting_with_a_new_head(2000.0), 2000.3, 1)
    assert state.phase is Phase.RESTARTING
    assert team.restart_is_due(state, 2010.0)


def test_the_nodes_meet_at_the_new_head() -> None:
    state = exited(restarting_with_a_new_head(2000.0), 2000.3, 1)
    state, actions = gang.step(state, gang_events.PortFound(29501, 2010.0, "10.0.1.3"))
    (order, *_) = [action.order for action in actions if action.node == state.head]
    assert isinstance(order, Run)
    assert (order.node_rank, order.master_addr, order.master_port) == (0, "10.0.1.3", 29501)
