"""Ranks hang because their network is cut, while the hosts hear each other on another one."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from orchestrator.node.gang import gang, gang_events
from orchestrator.node.gang.gang_state import Phase, State
from orchestrator.node.roles import rank_network
from orchestrator.node.roles.network_watch import NetworkWatch
from orchestrator.node.roles.rank_network import RankNetwork

HOSTS = [f"host-{number}" for number in range(3)]
ADDRESS = "10.78.0.1"
LEASE = 8.0


def at_work() -> State:
    state = gang.begin([{"host": host, "nproc": 1} for host in HOSTS], 1, 3, 600.0, 3)
    events: list[gang_events.Event] = [gang_events.Joined(number, 1000.0) for number in range(3)]
    events.append(gang_events.StartRequested(ADDRESS, 29500, 1000.0))
    events += [gang_events.Started(number, 1, 1001.0) for number in range(3)]
    for event in events:
        state, _ = gang.step(state, event)
    return state


class Watched:
    """A run whose ranks print until `stop_at` seconds; nodes report a cut since `cut_at`."""

    def __init__(self, *cut: int, line_every: float = 1.0, cut_at: float = 100.0, prints_on: bool = False) -> None:
        self.lines: list[str] = []
        self._watch = NetworkWatch(HOSTS, LEASE, self.lines.append)
        self._state, self._cut, self._cut_at = at_work(), cut, cut_at
        self._every, self._prints_on = line_every, prints_on

    def failure_until(self, end: float) -> dict[str, Any] | None:
        last_line = 0.0
        for now in range(1, int(end)):
            if now % self._every == 0 and (self._prints_on or now <= self._cut_at):
                last_line = now
            for node in self._cut:
                self._watch.hear(node, (now - self._cut_at, ADDRESS) if now > self._cut_at else None)
            failure = self._watch.look(self._state, now - last_line, float(now))
            if failure is not None:
                return failure
        return None

    @property
    def cut_off(self) -> set[int]:
        return self._watch.cut_off

    def heal(self) -> None:
        for node in self._cut:
            self._watch.hear(node, None)


def test_a_host_whose_ranks_hang_fails_the_attempt() -> None:
    run = Watched(2)
    failure = run.failure_until(200)
    assert failure and (failure["host"], failure["rank"], failure["lost"], failure["at"]) == ("host-2", None, True, 100)
    state, _ = gang.step(at_work(), gang_events.Failed(failure["node"], 1, failure, 2000.0))
    assert state.phase is Phase.STOPPING and state.first_failure and state.first_failure["host"] == "host-2"
    (warning,) = run.lines
    assert "host-2" in warning and ADDRESS in warning
    run.heal()
    assert len(run.lines) == 2 and "again" in run.lines[1]


def test_the_head_is_named_if_no_other_host_reaches_it() -> None:
    failure = Watched(1, 2).failure_until(200)
    assert failure and failure["host"] == "host-0" and failure["node"] == 0


def test_ranks_that_print_do_not_hang() -> None:
    run = Watched(2, prints_on=True)
    assert run.failure_until(500) is None
    assert len(run.lines) == 1


def test_ranks_that_seldom_print_have_more_time() -> None:
    assert Watched(2, line_every=60.0, cut_at=120.0).failure_until(120 + 60 + 55) is None
    assert Watched(2, line_every=60.0, cut_at=120.0).failure_until(120 + 130) is not None


def test_a_short_cut_ends_nothing() -> None:
    run = Watched(2)
    assert run.failure_until(125) is None and run.cut_off == {2}
    run.heal()
    assert len(run.lines) == 2 and not run.cut_off


def test_an_attempt_that_is_over_does_not_fail() -> None:
    stopping, _ = gang.step(at_work(), gang_events.StopRequested("ann", 30.0, 2000.0))
    watch = NetworkWatch(HOSTS, LEASE, lambda _: None)
    watch.hear(2, (90.0, ADDRESS))
    assert watch.look(stopping, 90.0, 2000.0) is None


# --- on the other nodes


def order(nnodes: int = 2) -> gang_events.Run:
    return gang_events.Run(1, 1, nnodes, 1, 2, "127.0.0.1", 29500)


def look_until_tried(network: RankNetwork, port: int) -> None:
    network.look(None, ["127.0.0.1"], port)  # finds the path
    network.look(None, ["127.0.0.1"], port)  # tries
    network.look(None, ["127.0.0.1"], port)  # hears the answer


@pytest.mark.parametrize(("cluster_address", "is_cut"), [("127.0.0.2", False), ("192.0.2.7", True)])
def test_a_node_notices_that_it_does_not_reach_the_head(
    monkeypatch: pytest.MonkeyPatch, cluster_address: str, is_cut: bool
) -> None:
    """192.0.2.7 is no address of this host, like one that it has lost."""
    for seconds in ("LOOKS", "INTERVAL", "LEAST"):
        monkeypatch.setattr(rank_network, seconds, 0.0)
    network = RankNetwork({"cluster_address": cluster_address, "interface": "auto", "env": {}, "auto_env": {}})
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        look_until_tried(network, port)
        assert network.cut() is None  # it has no part in an attempt
        network.begin(order())
        look_until_tried(network, port)
        cut = network.cut()
        assert (cut is not None and cut["address"] == "127.0.0.1") is is_cut
        assert (network.problem() is not None) is is_cut


def test_a_node_does_not_miss_a_head_that_another_one_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in ("LOOKS", "INTERVAL", "LEAST"):
        monkeypatch.setattr(rank_network, seconds, 0.0)
    network = RankNetwork({"cluster_address": "192.0.2.7", "interface": "auto", "env": {}, "auto_env": {}})
    network.begin(order())
    look_until_tried(network, 1)
    assert network.problem() is not None
    network.leave_head()
    assert network.problem() is None and not network.is_known
    look_until_tried(network, 1)
    assert network.problem() is not None and network.is_known
    network.leave_head()
    network.look(None, ["127.0.0.9"], 1)  # there is no way to this head that is known
    assert network.problem() is None and network.is_known


def test_a_node_that_is_alone_has_no_network_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in ("LOOKS", "INTERVAL", "LEAST"):
        monkeypatch.setattr(rank_network, seconds, 0.0)
    network = RankNetwork({"cluster_address": "192.0.2.7", "interface": "auto", "env": {}, "auto_env": {}})
    network.begin(order(nnodes=1))
    look_until_tried(network, 1)
    assert network.cut() is None
