"""Ranks hang because their network is cut, while the hosts hear each other on another one."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.node.gang import gang, gang_events
from orchestrator.node.gang.gang_state import Phase, State
from orchestrator.node.link.messages import Reach
from orchestrator.node.roles import rank_network
from orchestrator.node.roles.network_watch import NetworkWatch
from orchestrator.node.roles.rank_network import INTERVAL, WINDOW, RankNetwork

HOSTS = [f"host-{number}" for number in range(5)]
ADDRESS = "10.78.0.1"
LEASE = 8.0


def at_work(spares: int = 0, team: int = 3) -> State:
    nodes = [{"host": host, "nproc": 1, "spare": number >= team} for number, host in enumerate(HOSTS[: team + spares])]
    state = gang.begin(nodes, 1, 3, 600.0, 3)
    events: list[gang_events.Event] = [gang_events.Joined(number, 1000.0) for number in range(team + spares)]
    events.append(gang_events.StartRequested(ADDRESS, 29500, 1000.0))
    events += [gang_events.Started(number, 1, 1001.0) for number in range(team)]
    for event in events:
        state, _ = gang.step(state, event)
    return state


class Watched:
    """A run whose ranks print until `cut_at` seconds; then nodes reach the head no more.

    Each node tries every 5 s. `cuts`: those that are cut off, by the time if it is not `cut_at`. `lags`: by node, how
    much later its tries begin.
    """

    def __init__(
        self,
        *cut: int,
        team: int = 3,
        spares: int = 0,
        line_every: float = 1.0,
        cut_at: float = 100.0,
        prints_on: bool = False,
        cuts: Mapping[int, float] | None = None,
        lags: Mapping[int, float] | None = None,
        mute: Mapping[int, float] | None = None,
    ) -> None:
        """`mute`: nodes that report nothing, from that time on."""
        self.lines: list[str] = []
        self._watch = NetworkWatch(HOSTS, LEASE, self.lines.append)
        self._state, self._cut_at = at_work(spares, team), cut_at
        self._cuts = {**dict.fromkeys(cut, cut_at), **(cuts or {})}
        self._others, self._lags, self._mute = range(1, team + spares), lags or {}, mute or {}
        self._every, self._prints_on = line_every, prints_on

    def failure_until(self, end: float) -> dict[str, Any] | None:
        last_line = 0.0
        for now in range(1, int(end)):
            if now % self._every == 0 and (self._prints_on or now <= self._cut_at):
                last_line = now
            for node in self._others:
                if now < self._mute.get(node, end):
                    self._watch.hear(node, self._reach(node, float(now)), float(now))
            failure = self._watch.look(self._state, now - last_line, float(now))
            if failure is not None:
                return failure
        return None

    def _reach(self, node: int, now: float) -> Reach:
        lag, cut_at = self._lags.get(node, 0.0), self._cuts.get(node)
        ended = now if cut_at is None else min(now, cut_at)
        reached_at = (ended - lag) // INTERVAL * INTERVAL + lag
        seconds = now - reached_at
        is_cut = cut_at is not None and now > cut_at and seconds > INTERVAL + WINDOW
        return Reach(seconds, ADDRESS if is_cut else None)

    @property
    def cut_off(self) -> set[int]:
        return self._watch.cut_off

    def heal(self) -> None:
        for node in self._cuts:
            self._watch.hear(node, Reach(0.0), self._cut_at)


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
    run = Watched(1, 2, lags={2: 4.0})
    failure = run.failure_until(200)
    assert failure and failure["host"] == "host-0" and failure["node"] == 0
    assert run.cut_off == {0} and len(run.lines) == 1
    run.heal()
    assert len(run.lines) == 2 and "again" in run.lines[1] and not run.cut_off


@pytest.mark.parametrize("lag", [0.0, 2.0, 4.0])
@pytest.mark.parametrize("late", [1, 2, 3])
def test_spares_tell_whether_the_head_is_cut_off(late: int, lag: float) -> None:
    """The only other host with ranks cannot."""
    lags = {late: lag}
    failure = Watched(1, 2, 3, team=2, spares=2, lags=lags).failure_until(200)
    assert failure and failure["node"] == 0 and failure["at"] == pytest.approx(100, abs=INTERVAL)
    run = Watched(1, team=2, spares=2, lags=lags)
    failure = run.failure_until(200)
    assert failure and failure["node"] == 1 and "no other host" not in failure["what"]
    assert run.cut_off == {1}


def test_a_spare_that_is_cut_off_as_well_tells_nothing() -> None:
    failure = Watched(1, team=2, spares=2, cuts={2: 60.0}).failure_until(200)
    assert failure and failure["node"] == 1
    failure = Watched(1, 3, team=2, spares=2, cuts={2: 60.0}).failure_until(200)
    assert failure and failure["node"] == 0
    failure = Watched(1, 3, team=2, spares=2).failure_until(200)  # one other host reaches the head
    assert failure and failure["node"] == 1


def test_the_cut_of_a_spare_ends_no_attempt() -> None:
    run = Watched(2, 3, team=2, spares=2)
    assert run.failure_until(400) is None and not run.cut_off


@pytest.mark.parametrize("options", [{}, {"spares": 1, "cuts": {2: 60.0}}, {"spares": 1, "mute": {2: 90.0}}])
def test_of_two_hosts_nobody_can_tell_which_one_is_cut_off(options: dict[str, Any]) -> None:
    failure = Watched(1, team=2, **options).failure_until(200)
    assert failure and failure["node"] == 1 and "whether it or host-0" in failure["what"]


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
    watch.hear(2, Reach(90.0, ADDRESS), 2000.0)
    assert watch.look(stopping, 90.0, 2000.0) is None


# --- on the other nodes


def spec(cluster_address: str, **node: Any) -> dict[str, Any]:
    environment = {"interface": "auto", "env": {}, "auto_env": {}}
    return {"cluster_address": cluster_address, **environment, "node": 0, "nodes": [node]}


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
    network = RankNetwork(spec(cluster_address))
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
    network = RankNetwork(spec("192.0.2.7"))
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
    network = RankNetwork(spec("192.0.2.7"))
    network.begin(order(nnodes=1))
    look_until_tried(network, 1)
    assert network.cut() is None


def test_a_spare_reports_a_cut_once_it_has_reached_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no such network knows nothing of it."""
    for seconds in ("LOOKS", "INTERVAL", "LEAST"):
        monkeypatch.setattr(rank_network, seconds, 0.0)
    stranger = RankNetwork(spec("192.0.2.7"))
    stranger.begin(gang_events.Wait(("host-0", "host-1"), "127.0.0.1"))
    look_until_tried(stranger, 1)
    assert stranger.cut() is stranger.reached() is stranger.problem() is None
    own = spec("127.0.0.2")
    spare = RankNetwork(own)
    spare.begin(gang_events.Wait(("host-0", "host-1"), "127.0.0.1"))
    monkeypatch.setattr(rank_network, "INTERVAL", 60.0)
    look_until_tried(spare, 1)  # at once: only then it can tell; a refusal is an answer
    monkeypatch.setattr(rank_network, "INTERVAL", 0.0)
    assert spare.reached() is not None and spare.cut() is None
    own["cluster_address"] = "192.0.2.7"  # it loses its address
    spare.begin(gang_events.Wait(("host-0",), "127.0.0.1"))
    look_until_tried(spare, 1)
    assert spare.reached() is None and spare.cut() and spare.problem()


def test_a_witness_tells_only_of_a_network_that_it_is_on() -> None:
    wait = gang_events.Wait(("host-0", "host-1"), "127.0.0.1")
    for own, can_tell in (("127.0.0.2", True), ("192.0.2.7", False)):
        witness = RankNetwork(spec(own, witness=True))
        witness.begin(wait)
        witness.look(None, ["127.0.0.1"], 1, at_once=True)
        assert (witness._path is not None) is can_tell
