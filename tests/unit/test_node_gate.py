"""The health gate: who is asked before another attempt, and what follows from the answers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from orchestrator.node.gang import gang, gang_orders, gate, team
from orchestrator.node.gang.gang_events import (
    Check,
    Checked,
    Exited,
    Failed,
    Joined,
    Lost,
    Order,
    PortFound,
    Run,
    Started,
    StartRequested,
    StopRequested,
    Tick,
)
from orchestrator.node.gang.gang_state import Phase, State
from orchestrator.node.roles import narration

LOST_GPU = {"code": "gpu-lost", "text": "GPU 3 does not respond"}
ECC = {"code": "gpu-ecc-error", "text": "GPU 3 has 2 new uncorrectable memory errors"}
Orders = dict[int, Order]


class Gang:
    """A gang whose first attempt has failed at second 10 and is over."""

    def __init__(self, spares: int = 0, **options: Any) -> None:
        nodes = [{"host": host, "nproc": 1, "spare": number > 2} for number, host in enumerate("abcdef"[: 3 + spares])]
        options = {"max_restarts": 3, "rejoin_timeout": 600.0, "has_gate": True, **options}
        self.state: State = gang.begin(nodes, **options)
        self.orders: Orders = {}
        self.lines: list[str] = []
        for number in range(len(nodes)):
            self.step(Joined(number, 0.0))
        self.step(StartRequested("10.0.0.1", 29500, 0.0))
        for number in range(3):
            self.step(Started(number, 1, 1.0))
        self.step(Failed(1, 1, {"host": "b", "node": 1, "rank": 1, "what": "killed by SIGKILL"}, 10.0))
        for number in range(3):
            self.step(Exited(number, 1, False, 10.0))

    def step(self, event: Any) -> Orders:
        before = self.state
        self.state, actions = gang.step(before, event)
        self.lines += narration.lines(before, self.state)
        self.orders = {action.node: action.order for action in actions}
        return self.orders

    def answer(self, node: int, *problems: dict[str, str], at: float = 10.2) -> Orders:
        return self.step(Checked(node, 2, list(problems), at))


def test_all_hosts_are_asked_at_once_and_the_attempt_begins_when_the_team_is_well() -> None:
    found = Gang(spares=1)
    assert found.orders == dict.fromkeys(range(4), Check(2, 10.0))
    for node in (0, 1):
        found.answer(node)
    assert found.step(PortFound(29501, 12.0)) == {} and not team.restart_is_due(found.state, 12.0)
    found.answer(2)
    assert team.restart_is_due(found.state, 12.0)
    orders = found.step(PortFound(29501, 12.0))
    assert [node for node, order in orders.items() if isinstance(order, Run)] == [0, 1, 2]


def test_an_order_to_check_is_given_again_to_a_node_that_was_away_and_only_until_it_has_answered() -> None:
    found = Gang()
    assert found.step(Joined(1, 10.5)) == {1: Check(2, 10.0)}
    found.answer(1)
    assert found.step(Joined(1, 11.0)) == {}


def test_a_host_that_never_answers_holds_the_run_up_for_a_while_only() -> None:
    found = Gang()
    found.answer(0)
    found.answer(2)
    assert not team.restart_is_due(found.state, 19.9)
    assert team.restart_is_due(found.state, 10.0 + team.CHECK_WINDOW + 0.1)


@pytest.mark.parametrize("problem", [LOST_GPU, ECC])
def test_a_host_with_a_problem_gives_way_to_a_healthy_spare(problem: dict[str, str]) -> None:
    found = Gang(spares=2)
    found.answer(3, ECC)
    for node in (0, 2, 4):
        found.answer(node)
    found.answer(1, problem)
    orders = found.step(PortFound(29501, 12.0))
    assert sorted(node for node, order in orders.items() if isinstance(order, Run)) == [0, 2, 4]
    run = orders[4]
    assert isinstance(run, Run) and run.node_rank == 1
    assert any("b" in line and problem["code"] in line for line in found.lines)


def test_without_a_spare_the_run_waits_for_a_host_on_which_nothing_can_succeed() -> None:
    found = Gang()
    for node in (0, 2):
        found.answer(node)
    found.answer(1, LOST_GPU)
    assert gang_orders.label(found.state) == "waiting" and gate.unfit(found.state) == {"b": ["gpu-lost"]}
    assert found.step(Tick(14.0)) == {}
    assert found.step(Tick(16.0)) == {1: Check(2, 16.0)}  # is it better now?
    assert gang_orders.label(found.state) == "waiting"
    assert found.answer(1, LOST_GPU, at=16.2) == {}
    assert found.step(Tick(22.0)) == {1: Check(2, 22.0)}
    found.answer(1, at=22.2)
    assert team.restart_is_due(found.state, 22.3)
    orders = found.step(PortFound(29501, 22.3))
    assert [node for node, order in orders.items() if isinstance(order, Run)] == [0, 1, 2]
    said = [line for line in found.lines if line.startswith("b") or "waiting" in line]
    assert len(said) == 3 and "gpu-lost" in said[0] and "10 min" in said[1]


def test_a_host_that_stays_broken_for_a_day_is_asked_ever_more_seldom() -> None:
    found = Gang(rejoin_timeout=86_400.0)
    for node in (0, 2):
        found.answer(node)
    found.answer(1, LOST_GPU)
    asked = []
    for second in range(11, 86_400):
        if found.step(Tick(float(second))):
            asked.append(second)
            found.answer(1, LOST_GPU, at=second + 0.2)
    assert asked[:3] == [16, 22, 28] and 100 < len(asked) < 1000
    assert max(after - before for before, after in pairwise(asked)) < 3600


def test_the_run_waits_for_its_head_too() -> None:
    found = Gang(spares=1)
    for node in (1, 2, 3):
        found.answer(node)
    found.answer(0, {"code": "disk-full", "text": "the disk is full"})
    assert gang_orders.label(found.state) == "waiting"


def test_a_host_that_stays_broken_ends_the_run_with_its_problem_as_the_reason() -> None:
    found = Gang()
    found.answer(0)
    found.answer(2)
    found.answer(1, LOST_GPU, at=11.0)
    found.step(Tick(610.0))
    assert found.state.phase is Phase.RESTARTING
    found.step(Tick(611.5))
    verdict = found.state.verdict or {}
    assert verdict["state"] == "failed" and verdict["first_failure"]["host"] == "b"
    assert "gpu-lost" in verdict["no_restart_reason"]


def test_a_problem_with_which_an_attempt_may_succeed_holds_nothing_up_without_a_spare() -> None:
    found = Gang()
    for node in (0, 2):
        found.answer(node)
    found.answer(1, ECC)
    assert team.next_team(found.state) == (0, 1, 2) and team.restart_is_due(found.state, 12.0)
    assert gate.unfit(found.state) == {}


def test_with_enough_other_hosts_the_run_continues_without_the_broken_one_and_takes_it_again_later() -> None:
    found = Gang(min_nodes=2, max_nodes=3)
    for node in (0, 2):
        found.answer(node)
    found.answer(1, LOST_GPU)
    orders = found.step(PortFound(29501, 12.0))
    assert [node for node, order in orders.items() if isinstance(order, Run)] == [0, 2]
    for number in (0, 2):
        found.step(Started(number, 2, 13.0))
    assert gate.unfit(found.state) == {"b": ["gpu-lost"]}
    found.step(Failed(2, 2, {"host": "c", "node": 2, "rank": 1, "what": "killed by SIGKILL"}, 20.0))
    for number in (0, 2):
        found.step(Exited(number, 2, False, 20.0))
    assert isinstance(found.step(Joined(1, 20.1))[1], Check)  # what it said before does not count any more
    for number in range(3):
        found.step(Checked(number, 3, [], 20.5))
    assert gate.unfit(found.state) == {}
    assert team.next_team(found.state) == (0, 2, 1)


def test_an_answer_for_another_attempt_or_too_late_changes_nothing() -> None:
    found = Gang()
    before = found.state
    found.step(Checked(1, 1, [LOST_GPU], 10.1))
    assert found.state == before
    for node in range(3):
        found.answer(node)
    found.step(PortFound(29501, 12.0))
    before = found.state
    found.answer(1, LOST_GPU, at=12.1)
    assert found.state == before


def test_a_host_that_was_lost_and_is_back_is_asked_again() -> None:
    found = Gang()
    for node in range(3):
        found.answer(node)
    found.step(Lost(2, 20.0, 12.0))
    found.step(Joined(2, 30.0))
    orders = found.step(Exited(2, 1, False, 30.1))
    assert orders[2] == Check(2, 30.1)
    assert not team.restart_is_due(found.state, 30.2)
    found.answer(2, at=30.3)
    assert team.restart_is_due(found.state, 30.4)


def test_a_stop_request_ends_the_run_while_it_waits_for_a_host() -> None:
    found = Gang()
    found.answer(1, LOST_GPU)
    found.step(StopRequested("ann", 5.0, 12.0))
    assert (found.state.verdict or {})["state"] == "killed"


def test_a_gang_without_a_gate_asks_nobody() -> None:
    found = Gang(has_gate=False)
    assert found.orders == {}
    assert team.restart_is_due(found.state, 12.0)
    assert all(gate.order_of(found.state, number) is None for number in range(3))
