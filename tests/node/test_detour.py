"""Messages by a detour: three nodes in this process, connected by real sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from test_peers import RUN_KEY, STATUS, Recorder

from orchestrator.node.gang.gang_events import Order, StartRequested
from orchestrator.node.gang.gang_state import NodePhase
from orchestrator.node.link.contacts import Contact, Contacts
from orchestrator.node.link.messages import Envelope, Malformed, envelope
from orchestrator.node.link.peers import ClusterLink
from orchestrator.node.roles.detour import Detours
from orchestrator.node.roles.follower import WorkerLink
from orchestrator.node.roles.head import HeadLink
from orchestrator.node.roles.transport import Transport

LEASE = 2.0  # s


class Node(Recorder):
    """One of three, with a listener of its own."""

    def __init__(self, folder: Path, number: int, head: tuple[str, int] | None) -> None:
        folder.mkdir()
        super().__init__(folder, RUN_KEY, head[1] if head else 0, number)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.orders: list[Order] = []
        address, port = self.listener.getsockname()
        self.spec["nodes"] = [{"host": f"host-{node}", "nproc": 1} for node in range(3)]
        self.spec |= {"lease": LEASE, "min_nodes": 3, "contact": {"addresses": [address], "port": port, "sshd": None}}
        self.reported = {**STATUS, "committed": True, "waiting": False, "fenced": False, "restarted": False}
        transport = Transport(self, [self.listener])  # type: ignore[arg-type]
        self.side: ClusterLink = WorkerLink(self, transport) if head else HeadLink(self, transport)  # type: ignore[arg-type]

    def obey(self, order: Order, until: float | None = None) -> None:
        self.orders.append(order)

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
        self.head = Node(folder / "0", 0, None)
        at = self.head.listener.getsockname()
        self.helper, self.node = Node(folder / "1", 1, at), Node(folder / "2", 2, at)
        self.until(lambda: len(self.gang.links()) >= 2 and not self.gang._unchecked, "all have joined")
        self.gang._step(StartRequested("127.0.0.1", 29500, self.gang._now()))
        self.until(lambda: bool(self.node.orders), "the order to run has arrived")

    @property
    def gang(self) -> HeadLink:
        assert isinstance(self.head.side, HeadLink)
        return self.head.side

    @property
    def phase(self) -> NodePhase:
        return self.gang._state.nodes[2].phase

    def until(self, condition: Callable[[], object], what: str) -> None:
        def turn() -> object:
            for node in (self.head, self.helper, self.node):
                node.turn()
            return condition()

        wait_until(turn, 20.0, what)

    def break_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between the head and node 2, both ways: nothing they send to each other is ever sent, and neither dials."""
        side = self.node.side
        assert isinstance(side, WorkerLink) and side._link is not None
        for link in (self.gang._nodes[2], side._link):
            monkeypatch.setattr(link, "send", lambda message: None)
        monkeypatch.setattr(side, "_dial", lambda: None)
        reach = self.gang._detours.try_to_reach
        monkeypatch.setattr(self.gang._detours, "try_to_reach", lambda node: reach(node) if node != 2 else None)

    def close(self) -> None:
        for node in (self.head, self.helper, self.node):
            node.close()


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    trio = Trio(tmp_path)
    yield trio
    trio.close()


def test_a_node_behind_a_broken_path_is_heard_and_obeys_by_a_detour(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.break_path(monkeypatch)
    trio.until(lambda: any("answers through host-1" in line for line in trio.head.lines), "node 2 is heard again")
    assert any(line.startswith("suspect: the link to host-2") for line in trio.head.lines)
    trio.node.reported["phase"], trio.node.reported["attempt"] = "running", 1
    trio.until(lambda: trio.phase is NodePhase.RUNNING, "its status arrives")
    failed = {
        "rank": 0,
        "what": "rank 0: exit code 1",
        "attempt": 1,
        "at": 1.0,
        "exit_code": 1,
        "signal": None,
        "pid": 5,
    }
    trio.helper.side.on_status({**STATUS, "phase": "running", "attempt": 1, "failures": [failed]})
    trio.until(lambda: type(trio.node.orders[-1]).__name__ == "Stop", "the order to stop arrives")
    assert [type(order).__name__ for order in trio.node.orders] == ["Run", "Stop"]  # each once
    permits = len(trio.node.permits)
    trio.until(lambda: len(trio.node.permits) > permits + 3, "its permit is renewed")
    assert "end" not in trio.node.commands


def test_the_permit_is_renewed_by_a_detour_where_only_the_way_to_the_node_is_broken(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head hears it all the time, and learns from it that nothing arrives there."""
    side = trio.node.side
    assert isinstance(side, WorkerLink)
    monkeypatch.setattr(trio.gang._nodes[2], "send", lambda message: None)
    monkeypatch.setattr(side, "_dial", lambda: None)
    trio.until(lambda: side._detour is not None, "the head uses a detour")
    permits = len(trio.node.permits)
    trio.until(lambda: len(trio.node.permits) > permits + 3, "its permit is renewed")
    assert any(line.startswith("suspect: the link to host-2") for line in trio.head.lines)


def test_the_permit_lapses_without_a_helper(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.break_path(monkeypatch)
    monkeypatch.setattr(trio.gang._watch, "helpers", lambda *_: ())
    trio.node.reported["attempt"] = 1
    trio.until(lambda: trio.phase is NodePhase.LOST, "node 2 is lost")
    trio.until(lambda: any("no message" in line for line in trio.node.lines), "node 2 stops")


def test_a_node_whose_guard_and_recorder_are_gone_is_lost_at_once(trio: Trio) -> None:
    trio.gang._lease = trio.gang._watch._lease = 600.0
    trio.until(lambda: trio.gang._detours.has_reached(2), "it was dialled once")
    trio.node.close()
    trio.node.turn = lambda: None  # type: ignore[method-assign]
    trio.until(lambda: trio.phase is NodePhase.LOST, "the refusal is seen")
    assert any("refuses connections" in line for line in trio.head.lines)


def test_a_node_whose_recorder_is_restarted_is_not_lost(trio: Trio) -> None:
    """The guard keeps its port: nobody answers there for a moment, but nobody refuses."""
    trio.until(lambda: trio.gang._detours.has_reached(2), "it was dialled once")
    side = trio.node.side
    for link in side.links():
        link.close()
    trio.node.side = WorkerLink(trio.node, Transport(trio.node, [trio.node.listener]))  # type: ignore[arg-type]
    trio.until(lambda: 2 in trio.gang._nodes and trio.gang._nodes[2].ready, "it has joined again")
    assert trio.phase is not NodePhase.LOST
    assert not any("refuses" in line for line in trio.head.lines)


def test_a_refusal_where_nobody_was_reached_before_proves_nothing() -> None:
    """It may be the docker0 of this host, or a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    contacts = Contacts()
    contacts.learn(1, Contact(("127.0.0.1",), port))
    detours = Detours(RUN_KEY, 0, 2, contacts)
    detours.try_to_reach(1)
    wait_until(lambda: [detours.on_readable(link.fileno()) for link in detours.links()] == [], 5.0, "it is refused")
    assert detours.refusals == set()


def test_a_node_that_does_not_answer_is_dialled_again_and_again() -> None:
    """TCP itself waits longer and longer, also if a cut is over."""
    contacts = Contacts()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        contacts.learn(1, Contact(("127.0.0.1",), silent.getsockname()[1]))
        detours = Detours(RUN_KEY, 0, 2, contacts)

        def dial() -> int:
            detours.try_to_reach(1)
            return len(detours.links())

        assert (dial(), dial()) == (1, 1)
        wait_until(lambda: dial() == 3, 10.0, "there are more dials")
        for link in detours.links():
            link.close()


def test_a_node_carries_what_its_sender_brings_and_nothing_else(trio: Trio) -> None:
    """Otherwise two nodes could pass a message on for ever."""
    sent: list[int] = []
    side = trio.helper.side
    assert isinstance(side, WorkerLink)
    side._detours.send = lambda node, envelope: sent.append(node)  # type: ignore[method-assign]
    detours = Detours(RUN_KEY, 2, 3, Contacts())
    contact = trio.helper.spec["contact"]
    detours._contacts.learn(1, Contact(tuple(contact["addresses"]), contact["port"]))

    def bring(*envelopes: Envelope) -> None:
        for one in envelopes:
            detours.send(1, one)

        def carried() -> bool:
            for link in detours.links():
                link.flush()
                if select.select([link.fileno()], [], [], 0.0)[0]:
                    detours.on_readable(link.fileno())
            return bool(sent)

        trio.until(carried, "the last one is carried")

    bring(Envelope(0, 2, {"order": ["Run", {}]}), Envelope(0, 1, {"order": 5}), Envelope(2, 2, {}))
    assert sent == [2]
    for link in detours.links():
        link.close()


@pytest.mark.parametrize("message", [None, [], [0, 1], [0, 3, {}], [-1, 1, {}], [0, 1, []], [True, 1, {}]])
def test_an_envelope_that_no_honest_node_sends_is_malformed(message: Any) -> None:
    with pytest.raises(Malformed):
        envelope(message, 3)
