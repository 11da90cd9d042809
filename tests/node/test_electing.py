"""Three nodes that elect their head, in this process and connected by real sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from test_peers import RUN_KEY, STATUS, Recorder

from orchestrator.node.gang import gang
from orchestrator.node.gang.gang_events import Order, Run, Stop
from orchestrator.node.gang.gang_state import NodePhase
from orchestrator.node.guard.permit import clock
from orchestrator.node.link import messages
from orchestrator.node.link.contacts import Contacts
from orchestrator.node.roles.elected_follower import ElectedFollower
from orchestrator.node.roles.elected_head import ElectedHead
from orchestrator.node.roles.electing import ElectingLink
from orchestrator.node.roles.transport import Transport

LEASE = 2.0  # s


class Node(Recorder):
    def __init__(self, folder: Path, number: int, first: tuple[str, int] | None) -> None:
        folder.mkdir()
        super().__init__(folder, RUN_KEY, first[1] if first else 0, number)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.orders: list[tuple[Order, float | None]] = []
        address, port = self.listener.getsockname()
        self.spec["nodes"] = [{"host": f"host-{node}", "nproc": 1} for node in range(3)]
        self.spec |= {"lease": LEASE, "head_lost": "elect", "min_nodes": 2, "rejoin_timeout": 600.0, "max_restarts": 3}
        self.spec["contact"] = {"addresses": [address], "port": port, "sshd": None}
        self.reported = {
            **STATUS,
            "start": None,
            "committed": True,
            "waiting": False,
            "fenced": False,
            "restarted": False,
            "team_requests": [],
        }
        self.side = ElectingLink(self, Transport(self, [self.listener]))  # type: ignore[arg-type]

    def obey(self, order: Order, until: float | None = None) -> None:
        self.orders.append((order, until))

    def runs(self) -> list[int]:
        return [order.attempt for order, _ in self.orders if isinstance(order, Run)]

    def turn(self) -> None:
        handles = [link.fileno() for link in self.side.links()] + [one.fileno() for one in self.side.listening()]
        for handle in select.select(handles, [], [], 0.005)[0]:
            self.side.on_readable(handle)
        self.side.on_tick()
        for link in self.side.links():
            link.flush()

    def close(self) -> None:
        for link in self.side.links():
            link.close()
        self.listener.close()


class Trio:
    def __init__(self, folder: Path) -> None:
        first = Node(folder / "0", 0, None)
        self.nodes = [first, *(Node(folder / str(n), n, first.listener.getsockname()) for n in (1, 2))]
        first.side.on_status(first.reported)
        self.until(lambda: "prepared" in self.nodes[1].commands and "prepared" in self.nodes[2].commands, "all joined")
        start = {"master_addr": "127.0.0.1", "master_port": 29500, "link_addresses": ["127.0.0.1"]}
        first.reported["start"] = start
        first.side.on_status(first.reported)
        self.until(lambda: all(set(node.runs()) == {1} for node in self.nodes), "all have the order to run")

    def until(self, condition: Callable[[], object], what: str) -> None:
        def turn() -> object:
            for node in self.nodes:
                node.turn()
            return condition()

        wait_until(turn, 30.0, what)

    def lose_head(self) -> None:
        self.nodes.pop(0).close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    trio = Trio(tmp_path)
    yield trio
    trio.close()


def has_lead(node: Node) -> bool:
    """Whether it is the head, and a majority has what it has decided."""
    return isinstance(node.side._role, ElectedHead) and node.side._role._has_announced


def test_all_nodes_have_the_events_of_the_gang(trio: Trio) -> None:
    logs = [Path(node.folder, "gang.jsonl") for node in trio.nodes]
    trio.until(lambda: len({log.read_text() for log in logs}) == 1, "the logs are the same")
    assert logs[0].read_text().startswith('{"event": "StartRequested"')


def test_a_node_replays_no_event_twice(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the gang in every turn, and the log of a large run is long."""
    known = trio.nodes[1].side._gang.state()
    assert known.attempt == 1
    monkeypatch.setattr(gang, "step", lambda *_: pytest.fail("an event is replayed"))
    assert trio.nodes[1].side._gang.state() is known


def test_an_order_to_run_has_an_end(trio: Trio) -> None:
    """Otherwise a guard that is late could start ranks when another head has given them up."""
    for node in trio.nodes:
        ((_, until),) = {(type(order), until) for order, until in node.orders[:1]}
        assert until is not None and until - clock() <= LEASE


def test_a_node_that_does_not_know_where_the_new_head_is_learns_it_from_the_head(trio: Trio) -> None:
    """The old head may be lost before it has told everybody of everybody."""
    helper, node = trio.nodes[1:]
    trio.until(lambda: node.side._transport.contacts.get(1) is not None, "it has been told")
    forgotten = Contacts()
    side = node.side
    side._transport.contacts = side._role._contacts = side._transport.detours._contacts = forgotten
    trio.lose_head()
    trio.until(lambda: has_lead(helper), "the next node leads")
    trio.until(lambda: 2 in helper.side._role.__dict__["_nodes"], "the last node has joined it")
    assert any("host-1 leads now" in line for line in helper.lines)


@pytest.mark.parametrize("broken", [(0, 2), (0,), (2,)], ids=["both", "to the node", "to the head"])
def test_a_permit_is_renewed_by_another_connection_when_a_link_is_silent(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, broken: tuple[int, ...]
) -> None:
    """After a cut, what was lost on the link is sent again so late that the permit would have lapsed."""
    head, node = trio.nodes[0].side._role, trio.nodes[2].side._role
    assert isinstance(head, ElectedHead) and isinstance(node, ElectedFollower) and node._link is not None
    monkeypatch.setattr(node, "_dial", lambda: None)
    monkeypatch.setattr(head, "_reach", lambda *_: None)
    for link in [{0: head._nodes[2], 2: node._link}[number] for number in broken]:
        monkeypatch.setattr(link, "send", lambda message: None)
    silent_at, lines = clock(), list(trio.nodes[2].lines)
    trio.until(lambda: node._voter.state.permit_until > silent_at + 1.5 * LEASE, "its permit is renewed")
    assert trio.nodes[2].lines == lines  # it would say that it stops
    assert head._state.nodes[2].phase is not NodePhase.LOST


def test_a_node_behind_a_broken_path_goes_on_by_a_detour(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a lease, after which its link is closed."""
    head, node = trio.nodes[0].side._role, trio.nodes[2].side._role
    assert isinstance(head, ElectedHead) and isinstance(node, ElectedFollower) and node._link is not None
    monkeypatch.setattr(node, "_dial", lambda: None)
    for detours, peer in ((head._detours, 2), (node._detours, 0)):
        reach = detours.try_to_reach
        allowed = lambda to, reach=reach, peer=peer: reach(to) if to != peer else None  # noqa: E731
        monkeypatch.setattr(detours, "try_to_reach", allowed)
        for link in [link for link in detours.links() if link.peer == peer]:  # a slow start has needed one
            detours._close(link)
    for link in (head._nodes[2], node._link):
        monkeypatch.setattr(link, "send", lambda message: None)
    broken_at, lines = clock(), list(trio.nodes[2].lines)
    trio.until(lambda: node._link is None, "the link is closed")
    trio.until(lambda: node._voter.state.permit_until > broken_at + 4 * LEASE, "its permit is renewed")
    assert trio.nodes[2].lines == lines  # it would say that it stops
    assert head._state.nodes[2].phase is not NodePhase.LOST
    assert any("answers through host-1" in line for line in trio.nodes[0].lines)


def test_the_old_attempt_is_stopped_by_the_new_head(trio: Trio) -> None:
    trio.lose_head()
    for node in trio.nodes:
        node.reported |= {"attempt": 1, "phase": "running"}
    trio.until(lambda: all(isinstance(node.orders[-1][0], Stop) for node in trio.nodes), "all are stopped")


@pytest.mark.parametrize("change", [{"election": None}, {"election": ["Beat", {}]}], ids=["no beat", "a wrong beat"])
def test_an_order_without_a_beat_is_not_obeyed(trio: Trio, change: dict[str, Any]) -> None:
    node = trio.nodes[2]
    assert isinstance(node.side._role, ElectedFollower)
    stop = ["Stop", {"attempt": 1, "grace": 1.0, "why": "", "stacks": False}]
    before = list(node.orders)
    message = messages.of_head({"order": stop, **change})
    assert message.order is not None
    node.side._role._obey(message, message.order)
    assert node.orders == before
