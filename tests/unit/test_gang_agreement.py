"""`run.resume` in the gang: no attempt begins before the output folders of its team agree."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.gang import agreement, gang, gang_orders
from orchestrator.node.gang.gang_events import (
    Agreed,
    Commit,
    Elected,
    Event,
    Exited,
    Failed,
    Joined,
    Lost,
    NotAgreed,
    Order,
    PortFound,
    Run,
    Started,
    StartRequested,
    StopRequested,
    Tick,
    Wait,
)
from orchestrator.node.gang.gang_state import KILL_WINDOW, Phase, State
from orchestrator.node.roles import narration


class Gang:
    """Three nodes, and a spare, that have joined; their start has been requested at second 0."""

    def __init__(self, **options: Any) -> None:
        nodes = [{"host": host, "nproc": 1, "spare": host == "d"} for host in "abcd"]
        options = {"max_restarts": 3, "rejoin_timeout": 600.0, "has_agreement": True, **options}
        self.state: State = gang.begin(nodes, **options)
        self.lines: list[str] = []
        for number in range(len(nodes)):
            self.step(Joined(number, 0.0))
        self.first_orders = self.step(StartRequested("10.0.0.1", 29500, 0.0))

    def step(self, event: Event) -> dict[int, Order]:
        before = self.state
        self.state, actions = gang.step(before, event)
        self.lines += narration.lines(before, self.state)
        return {action.node: action.order for action in actions}

    def run(self) -> None:
        """The first attempt runs, from second 5 on."""
        self.step(Agreed(1, (0, 1, 2), 5.0))
        for number in range(3):
            self.step(Started(number, 1, 6.0))

    def fail(self) -> None:
        """It has failed at second 100, and nothing of it is left."""
        self.run()
        self.step(Failed(1, 1, {"host": "b", "node": 1, "rank": 1, "what": "killed by SIGKILL"}, 100.0))
        for number in range(3):
            self.step(Exited(number, 1, False, 100.0))


def runs(orders: dict[int, Order]) -> list[int]:
    return sorted(node for node, order in orders.items() if isinstance(order, Run))


def test_the_first_attempt_begins_when_the_folders_agree() -> None:
    found = Gang()
    assert found.state.phase is Phase.WAITING and gang_orders.label(found.state) == "starting"
    assert agreement.due(found.state, 0.0) == (0, 1, 2)
    assert runs(found.step(Agreed(1, (0, 1, 2), 5.0))) == [0, 1, 2]
    assert found.state.attempt == 1 and (found.state.master_addr, found.state.master_port) == ("10.0.0.1", 29500)
    assert agreement.due(found.state, 6.0) is None


def test_all_nodes_are_told_that_the_run_has_begun_while_the_folders_do_not_agree() -> None:
    """Without an order, a guard whose controller has gone ends."""
    found = Gang()
    assert found.first_orders == dict.fromkeys(range(4), Commit())
    assert found.step(Joined(2, 1.0)) == {2: Commit()}  # its recorder was started again
    assert isinstance(found.step(Agreed(1, (0, 1, 2), 5.0))[3], Wait)


def test_a_restart_needs_a_new_agreement() -> None:
    found = Gang()
    found.fail()
    assert agreement.due(found.state, 102.0) == (0, 1, 2)
    assert found.step(PortFound(29501, 102.0)) == {}
    found.step(Agreed(2, [0, 1, 2], 103.0))  # type: ignore[arg-type]  # as gang.jsonl has it
    assert agreement.due(found.state, 103.0) is None
    assert runs(found.step(PortFound(29501, 103.0))) == [0, 1, 2]


def test_folders_that_a_lost_host_cannot_write_into_agree_while_its_ranks_may_still_run() -> None:
    found = Gang()
    found.run()
    found.step(Lost(1, 100.0, 92.0))
    for number in (0, 2):
        found.step(Exited(number, 1, False, 101.0))
    assert agreement.due(found.state, 101.0) is None
    assert agreement.due(found.state, 101.0, private=True) == (0, 3, 2)
    found.step(Agreed(2, (0, 3, 2), 101.5))
    assert found.step(PortFound(29501, 100.0 + KILL_WINDOW - 0.1)) == {}
    assert runs(found.step(PortFound(29501, 100.0 + KILL_WINDOW + 0.1))) == [0, 2, 3]


def test_an_agreement_of_another_team_or_attempt_does_not_count() -> None:
    found = Gang()
    found.fail()
    found.step(Agreed(1, (0, 1, 2), 102.0))
    found.step(Agreed(2, (0, 2), 102.0))
    assert found.step(PortFound(29501, 102.0)) == {}
    found.step(Lost(1, 103.0, 95.0))
    found.step(Agreed(2, (0, 1, 2), 104.0))
    assert agreement.due(found.state, 110.0) == (0, 3, 2)
    found.step(Agreed(2, (0, 3, 2), 111.0))
    assert runs(found.step(PortFound(29501, 111.0))) == [0, 2, 3]


def test_a_host_that_was_away_after_the_agreement_is_brought_to_agreement_again() -> None:
    found = Gang(max_restarts=5)
    found.state = found.state._replace(min_nodes=3)
    found.fail()
    found.step(Agreed(2, (0, 1, 2), 102.0))
    for event in (Lost(3, 102.5, 94.0), Lost(2, 103.0, 95.0), Joined(2, 104.0), Exited(2, 1, False, 104.1)):
        found.step(event)
    assert agreement.due(found.state, 120.0) == (0, 1, 2)
    assert found.step(PortFound(29501, 120.0)) == {}


def test_folders_that_cannot_agree_end_the_run_with_the_reason() -> None:
    found = Gang()
    why = "c: 12.0 GB are to be copied, but only 3.0 GB are free"
    found.step(NotAgreed(1, 2, why, 5.0))
    verdict = found.state.verdict or {}
    assert verdict["state"] == "failed" and verdict["first_failure"]["host"] == "c"
    assert verdict["no_restart_reason"] == why and any(why in line for line in found.lines)

    found = Gang()
    found.fail()
    found.step(NotAgreed(2, 2, why, 103.0))
    verdict = found.state.verdict or {}
    assert verdict["state"] == "failed" and verdict["first_failure"]["what"] == "killed by SIGKILL"
    assert verdict["no_restart_reason"] == why


def test_a_stop_request_ends_the_run_while_files_are_copied() -> None:
    for found in (Gang(), Gang()):
        found.step(StopRequested("ann", 5.0, 4.0))
        assert (found.state.verdict or {})["state"] == "killed"
        found.step(Agreed(1, (0, 1, 2), 5.0))
        assert found.state.attempt == 0


def test_a_host_that_is_lost_while_files_are_copied_at_the_start_gives_way_to_the_spare() -> None:
    found = Gang()
    found.step(Lost(2, 9.0, 1.0))
    assert agreement.due(found.state, 9.0) is None
    assert found.step(Tick(59.0)) == {} and found.state.phase is Phase.WAITING
    found.step(Tick(61.0))
    assert found.state.first_failure and found.state.first_failure["host"] == "c"
    for number in range(2):
        assert found.step(Exited(number, 1, False, 62.0)) == {}
    assert agreement.due(found.state, 70.0) == (0, 1, 3)


def test_a_host_that_comes_back_in_time_takes_part_in_the_first_attempt() -> None:
    found = Gang()
    found.step(Lost(2, 9.0, 1.0))
    found.step(Joined(2, 20.0))
    assert agreement.due(found.state, 20.0) == (0, 1, 2)


def test_a_head_that_is_lost_while_files_are_copied_at_the_start_costs_the_attempt() -> None:
    found = Gang()
    found.step(Elected(1, "10.0.0.2", 30.0))
    assert found.state.attempt == 1 and (found.state.first_failure or {})["what"] == "head lost"


EVENTS = st.one_of(
    st.builds(Agreed, st.integers(1, 3), st.sampled_from([(0, 1, 2), (0, 3, 2), (0, 1, 3), (0, 1)]), st.just(0.0)),
    st.builds(NotAgreed, st.integers(1, 3), st.integers(0, 3), st.just("no space"), st.just(0.0)),
    st.builds(PortFound, st.just(29501), st.just(0.0)),
    st.builds(Tick, st.just(0.0)),
    st.builds(Joined, st.integers(1, 3), st.just(0.0)),
    st.builds(Lost, st.integers(1, 3), st.just(0.0)),
    st.builds(Exited, st.integers(0, 3), st.integers(1, 3), st.booleans(), st.just(0.0)),
    st.builds(Started, st.integers(0, 3), st.integers(1, 3), st.just(0.0)),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.1, 2.0, 40.0])), max_size=40))
def test_whatever_happens_no_attempt_begins_before_its_team_agrees(events: list[tuple[Event, float]]) -> None:
    found, at = Gang(), 0.0
    agreed: set[tuple[int, tuple[int, ...]]] = set()
    for event, seconds in events:
        at += seconds
        if isinstance(event, Agreed):
            agreed.add((event.attempt, event.team))
        if runs(found.step(event._replace(at=at))):
            assert (found.state.attempt, found.state.team) in agreed
