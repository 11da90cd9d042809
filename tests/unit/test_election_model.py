"""The election in a model of whole runs: no rule is ever broken, and each rule of the election is needed.

More steps: tests/chaos/test_election_model.py.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from model import gangs, node, real_gang, walk, world
from model.gangs import Gang
from model.real_gang import BEGUN_BY, RealGang
from model.world import Fault, Scenario, Weather

from orchestrator.node.gang import election, election_log, newcomers
from orchestrator.node.gang.election_state import SHORTER, Beat, State, first_ballot
from orchestrator.node.gang.gang_state import KILL_WINDOW, NodePhase

STEPS = 40_000
SEEDS = 80  # in which the scenario of a broken rule is played, until it is noticed
ALWAYS = float("inf")


@pytest.mark.parametrize(("gang", "begins"), [(Gang, 0.5), (RealGang, BEGUN_BY)])
def test_no_rule_is_broken_in_random_worlds(gang: type[Gang], begins: float) -> None:
    worlds, steps = walk.walk("unit", STEPS, gang, begins)
    assert worlds > 10 and steps >= STEPS


# --- broken rules


def both(*pairs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(direction for here, there in pairs for direction in ((here, there), (there, here)))


def scenario(*faults: Fault, voters: int = 3, team_size: int = 1, lease: float = 8.0, late: float = 0.0) -> Scenario:
    weather = Weather(loss=0.0, delay=0.01, late=late, doubled=0.0)
    return Scenario("", voters, team_size, False, True, lease, True, weather, faults)


def permit_without_echo(state: State, beat: Beat, at: float) -> float | None:
    return at + beat.remaining


def permit_of_any_boot(state: State, beat: Beat, at: float) -> float | None:
    return None if beat.echo is None else beat.echo.at + beat.remaining


def authority_of_a_minority(state: State, at: float) -> float:
    others = state.acknowledged[: state.config.node] + state.acknowledged[state.config.node + 1 :]
    return sorted((at, *others), reverse=True)[state.quorum - 2]


def remaining_of_a_lease(state: State, node: int, at: float) -> float:
    return SHORTER * state.config.lease


def remaining_for_an_old_stamp(state: State, node: int, at: float) -> float:
    return max(0.0, election.authority_until(state, at) - state.stamped_at[node])


def begin_without_disk(*arguments: Any) -> State:
    config, _, log, boot, at = arguments
    return BEGIN(config, first_ballot(config), log, boot, at)


def begin_without_lease(*arguments: Any) -> State:
    return BEGIN(*arguments)._replace(heard_at=-ALWAYS)


BEGIN = election.begin
HEAD_CUT_OFF = Fault(5, "cut", 0, 60, both((0, 1), (0, 2)))

BROKEN: dict[str, tuple[tuple[Any, str, Any], Scenario]] = {
    "a permit counts from the arrival of the beat": (
        (election, "permit_until", permit_without_echo),
        scenario(Fault(5, "cut", 0, 30, both((1, 0), (1, 2))), team_size=2, late=0.3),
    ),
    "a stamp of an earlier boot permits": (
        (election, "permit_until", permit_of_any_boot),
        scenario(Fault(5, "power", 1, 0.1), Fault(6, "cut", 0, 30, both((0, 1))), team_size=2),
    ),
    "a permit outlasts the authority of the head": (
        (election, "_remaining", remaining_of_a_lease),
        scenario(Fault(5, "cut", 0, 60, both((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4))), voters=5, team_size=2),
    ),
    "an old stamp permits as long as the head leads": (
        (election, "_remaining", remaining_for_an_old_stamp),
        scenario(Fault(5, "cut", 0, 40, ((1, 0),)), Fault(5, "cut", 0, 40, ((0, 1),), "order"), voters=3, team_size=2),
    ),
    "a new head does not wait for the stop window": (
        (election, "stop_window_ends_at", lambda state: state.won_at),
        scenario(HEAD_CUT_OFF, lease=2.0),
    ),
    "clocks drift more than promised": (
        (world, "DRIFT", 0.3),
        scenario(HEAD_CUT_OFF, lease=8.0),
    ),
    "a voter does not wait for its lease": (
        (election, "_lease_is_over", lambda state, at: True),
        scenario(Fault(5, "cut", 0, 60, both((0, 1)))),
    ),
    "a head votes while it has authority": (
        (election, "_heard_at", lambda state, at: state.heard_at),
        scenario(*(Fault(5, "cut", 0, 60, both((0, 1)), kind) for kind in ("Beat", "order", "status"))),
    ),
    "a rebooted voter does not wait for a lease": (
        (election, "begin", begin_without_lease),
        scenario(Fault(5, "cut", 0, 60, both((0, 1))), Fault(15, "power", 2, 0.3)),
    ),
    "a rebooted voter forgets its epoch and vote": (
        (election, "begin", begin_without_disk),
        scenario(
            Fault(5, "cut", 0, ALWAYS, both((0, 1))),
            Fault(5, "cut", 0, 15, both((0, 2))),
            Fault(20, "power", 2, 0.1),
            Fault(20, "cut", 0, 30, ((1, 2),), "Beat"),
        ),
    ),
    "a vote goes to an older log": (
        (election, "_is_as_new", lambda state, ask: True),
        scenario(Fault(1.0, "cut", 0, 60, both((0, 1))), Fault(5, "fail", 0), Fault(9, "power", 0, 30)),
    ),
    "a head has authority without a majority": (
        (election, "_authority_base", authority_of_a_minority),
        scenario(Fault(5, "cut", 0, 60, both((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4))), voters=5, lease=2.0),
    ),
    "orders follow from entries that no majority has": (
        (gangs, "visible", lambda state: len(state.log)),
        scenario(HEAD_CUT_OFF, Fault(5.1, "fail", 0)),
    ),
    "an attempt does not wait until the ranks of a lost host are dead": (
        (gangs, "AFTER_A_LOSS", 0.0),
        scenario(Fault(5, "cut", 0, 30, both((1, 0), (1, 2))), lease=2.0, team_size=2),
    ),
    "a guard renews a permit that has lapsed": (
        (node, "has_gap", lambda guard: False),
        scenario(Fault(5, "pause", 1, 12), Fault(5, "cut", 0, 40, ((0, 1),), "order"), voters=4, team_size=2),
    ),
}


def first_violation(case: Scenario) -> str | None:
    return next(filter(None, (walk.violation(case._replace(seed=str(seed))) for seed in range(SEEDS))), None)


@pytest.mark.parametrize("name", BROKEN)
def test_the_model_notices_when(name: str) -> None:
    change, case = BROKEN[name]
    with patch.object(*change):
        assert first_violation(case)


@pytest.mark.parametrize("name", BROKEN)
def test_with_all_rules_the_model_finds_nothing_where(name: str) -> None:
    assert not any(walk.violation(BROKEN[name][1]._replace(seed=str(seed))) for seed in range(5))


def test_the_model_notices_when_the_gang_does_not_wait_for_the_ranks_of_a_lost_host() -> None:
    case = scenario(Fault(10, "cut", 0, 30, both((1, 0), (1, 2))), lease=2.0, team_size=2)
    seeds = [case._replace(seed=str(seed)) for seed in range(SEEDS)]
    assert not any(walk.violation(seed, RealGang) for seed in seeds[:5])
    with patch.object(real_gang, "kill_window", lambda lease, elects: 0.0):
        assert any(walk.violation(seed, RealGang) for seed in seeds)


def test_the_model_notices_when_a_head_that_is_not_elected_takes_its_clock_for_that_of_a_lost_host() -> None:
    """The head's clock is fast, that of the lost host is slow, and a spare takes its place."""
    case = scenario(Fault(9.3, "cut", 0, 150, both((0, 1), (1, 2))), lease=12.0, team_size=2)
    case = case._replace(seed="311", elects=False)  # a seed with such clocks
    assert not walk.violation(case, RealGang)
    with patch.object(real_gang, "kill_window", lambda lease, elects: KILL_WINDOW):
        assert walk.violation(case, RealGang)


def draining(*numbers: int) -> list[Scenario]:
    case = scenario(*(Fault(9.0, "drain", number) for number in numbers), voters=5, team_size=2)
    return [case._replace(seed=str(seed)) for seed in range(3)]


def test_a_head_that_is_drained_hands_over() -> None:
    assert not any(walk.violation(case, RealGang) for case in draining(0, 1, 2))


def test_hosts_that_are_drained_at_once_leave_a_majority() -> None:
    """Three of five. They end when they do not vote any more, instead of the other way round."""
    assert not any(walk.violation(case, RealGang) for case in draining(2, 3, 4))
    with (
        patch.object(newcomers, "may_end", lambda state, number: number != state.head),
        patch.object(newcomers, "_has_left", lambda state, number: state.nodes[number].phase is NodePhase.LOST),
    ):
        assert any(walk.violation(case, RealGang) for case in draining(2, 3, 4))


@pytest.mark.parametrize("lost", [8.0, 9.3, 9.9])
def test_a_host_that_leaves_votes_until_a_majority_of_the_others_answers(lost: float) -> None:
    """Of three, one is down already, which nobody knows yet when another one is drained."""
    case = scenario(Fault(lost, "power", 2, ALWAYS), Fault(10.0, "drain", 1))
    assert not any(walk.violation(case._replace(seed=str(seed)), RealGang) for seed in range(3))


def test_of_a_run_from_which_all_but_one_leave_the_last_host_goes_on() -> None:
    case = scenario(Fault(9.0, "drain", 0), Fault(9.1, "drain", 1), Fault(60.0, "drain", 1))
    assert not any(walk.violation(case._replace(seed=str(seed)), RealGang) for seed in range(5))


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(10.0, "power", 1, ALWAYS)],
        [Fault(10.0, "power", 0, 60.0)],
        [Fault(9.0, "drain", 0), Fault(60.0, "power", 0, ALWAYS)],
        [Fault(9.0, "add"), Fault(40.0, "power", 0, ALWAYS)],
        [Fault(9.0, "add"), Fault(40.0, "power", 1, ALWAYS)],
    ],
)
def test_a_run_that_begins_on_two_hosts_elects_a_head_from_the_third_host_on(faults: list[Fault]) -> None:
    """Until then only the first head votes. It outlasts the loss of the other host, and hands over if it is drained."""
    case = scenario(*faults, voters=2)._replace(team_size=1)
    assert not any(walk.violation(case._replace(seed=str(seed)), RealGang) for seed in range(5))


@pytest.mark.parametrize("told", [0, 1, 2])
def test_all_nodes_end_when_the_head_is_lost_in_its_farewell(told: int) -> None:
    case = scenario(Fault(10, "farewell", told, ALWAYS), team_size=2)
    assert not any(walk.violation(case._replace(seed=str(seed)), RealGang) for seed in range(5))
    with patch.object(RealGang, "_end_without_head", lambda *_: None):
        stuck = [walk.violation(case._replace(seed=str(seed)), RealGang) for seed in range(5)]
    assert any(stuck) is (told == 1)  # with none told the others elect a head; with all told nobody is left


def several_at_once(state: State, voters: frozenset[int]) -> bool:
    return all(state.length_of(node) == state.length for node in voters - state.voters)


def test_the_model_notices_when_a_change_of_voters_does_not_wait_for_the_one_before() -> None:
    """The head and two new nodes are a majority of five, and the other two are one of three."""
    apart = both(*((here, there) for here in (0, 3, 4) for there in (1, 2)))
    case = scenario(Fault(5, "cut", 0, 60, apart), Fault(5.1, "add"), Fault(5.2, "add"))
    assert not any(walk.violation(case._replace(seed=str(seed))) for seed in range(5))
    with (
        patch.object(election, "may_change_voters", several_at_once),
        patch.object(election_log, "may_change_voters", several_at_once),
    ):
        assert first_violation(case)
