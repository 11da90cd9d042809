"""The link between recorders: what authentic sides say arrives, and nothing else is ever taken for it."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until

from orchestrator.node.link.link import MAX_MESSAGE, Link, LinkClosed, dial

RUN_KEY = bytes(range(32))
GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "link.json"

Tamper = Callable[[bytes], bytes]


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


class Middle:
    """A head and a node, and somebody between them who sees and may change every byte.

    The head stands for any node that accepts a connection. `dialled`: the number of the node that `node` wants.
    """

    def __init__(
        self, run_key: bytes = RUN_KEY, key: bytes = RUN_KEY, number: int = 1, dialled: int = 0, acceptor: int = 0
    ) -> None:
        at_head, self.to_head = connected()
        at_node, self.to_node = connected()
        self.head, self.node = Link(at_head, run_key, acceptor), Link(at_node, key, number, dialled)
        self.said_by_head, self.said_by_node = b"", b""

    def carry(self, to_head: Tamper = bytes, to_node: Tamper = bytes) -> tuple[list[Any], list[Any]]:
        """Bring over what both have said so far. Returns what the head and the node took for messages."""
        heard_by_head: list[Any] = []
        heard_by_node: list[Any] = []
        for _ in range(4):  # a handshake takes three ways
            for link, end, other_end, tamper, heard in (
                (self.head, self.to_head, self.to_node, to_node, heard_by_node),
                (self.node, self.to_node, self.to_head, to_head, heard_by_head),
            ):
                link.flush()
                data = available(end)
                if link is self.head:
                    self.said_by_head += data
                else:
                    self.said_by_node += data
                receiver = self.node if link is self.head else self.head
                data = tamper(data) if data else data
                if data:
                    other_end.sendall(data)
                    heard += take(receiver, len(data))
        return heard_by_head, heard_by_node

    def close(self) -> None:
        for one in (self.head, self.node, self.to_head, self.to_node):
            one.close()


def available(end: socket.socket) -> bytes:
    data = b""
    for _ in range(3):  # loopback delivers at once, but for the scheduler
        try:
            while chunk := end.recv(1 << 16):
                data += chunk
        except BlockingIOError:
            os.sched_yield()
    return data


def take(receiver: Link, count: int) -> list[Any]:
    """Let `receiver` read until it has seen `count` more bytes."""
    heard: list[Any] = []
    while count > 0:
        waiting = len(receiver._socket.recv(1 << 16, socket.MSG_PEEK)) if readable(receiver) else 0
        heard += receiver.receive()
        count -= waiting
    return heard


def readable(receiver: Link) -> bool:
    def arrived() -> bool:
        try:
            return bool(receiver._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    return wait_until(arrived, 5.0, "bytes arrive")


@pytest.fixture
def middle() -> Iterator[Middle]:
    one = Middle()
    yield one
    one.close()


def test_both_sides_know_each_other_after_the_handshake(middle: Middle) -> None:
    middle.carry()
    assert middle.head.ready
    assert middle.node.ready
    assert (middle.head.peer, middle.node.peer) == (1, 0)


def test_any_two_nodes_can_connect() -> None:
    middle = Middle(number=4, dialled=7, acceptor=7)
    middle.carry()
    assert (middle.head.ready, middle.head.peer) == (True, 4)
    assert (middle.node.ready, middle.node.peer) == (True, 7)
    middle.close()


def test_messages_arrive_in_order_both_ways(middle: Middle) -> None:
    middle.carry()
    for number in range(3):
        middle.head.send({"order": number})
        middle.node.send({"status": number})
    assert middle.carry() == ([{"status": n} for n in range(3)], [{"order": n} for n in range(3)])


def test_a_message_cut_into_single_bytes_arrives(middle: Middle) -> None:
    middle.carry()
    middle.head.send({"order": "x" * 200})
    middle.head.flush()
    data = available(middle.to_head)
    heard: list[Any] = []
    for byte in data:
        middle.to_node.sendall(bytes([byte]))
        heard += take(middle.node, 1)
    assert heard == [{"order": "x" * 200}]


def test_nothing_is_sent_before_the_other_side_is_known(middle: Middle) -> None:
    middle.node.send({"status": "secret"})
    middle.head.send({"order": "secret"})
    assert b"secret" not in available(middle.to_node) + available(middle.to_head)


@pytest.mark.parametrize("key", [pytest.param(bytes(32), id="no key"), pytest.param(RUN_KEY[::-1], id="another run's")])
def test_a_node_with_a_wrong_key_is_refused(key: bytes) -> None:
    middle = Middle(key=key)
    with pytest.raises(LinkClosed, match="wrong key"):
        middle.carry()
    assert not middle.head.ready
    assert middle.head.peer is None
    middle.close()


@pytest.mark.parametrize(
    ("number", "dialled"), [pytest.param(1, 2, id="led to another node"), pytest.param(7, 7, id="its own number")]
)
def test_a_connection_meant_for_another_node_is_refused(number: int, dialled: int) -> None:
    """Somebody on the network may carry the bytes of a dialer to a node that it did not dial."""
    middle = Middle(number=number, dialled=dialled, acceptor=7)
    with pytest.raises(LinkClosed, match="another node"):
        middle.carry()
    assert not middle.head.ready
    assert middle.head.peer is None
    middle.close()


def test_two_nodes_that_dial_each_other_cannot_be_joined_by_somebody_between_them() -> None:
    """Neither takes what the other one sends as a dialer for the answer of an acceptor."""
    ends = [connected(), connected()]
    links = [Link(ends[0][0], RUN_KEY, 1, 2), Link(ends[1][0], RUN_KEY, 2, 1)]
    for _, end in ends:
        end.sendall(bytes(32))
    for link in links:
        take(link, 32)
    answers = [available(end) for _, end in ends]
    for link, (_, end), answer in zip(links, ends, reversed(answers), strict=True):
        end.sendall(answer)
        with pytest.raises(LinkClosed, match="wrong key"):
            take(link, len(answer))
        assert not link.ready


def test_a_false_head_learns_nothing_and_is_refused() -> None:
    at_node, false_head = connected()
    node = Link(at_node, RUN_KEY, 1, 0)
    false_head.sendall(bytes(32))
    take(node, 32)
    assert len(available(false_head)) == 32 + 8 + 32
    false_head.sendall(bytes(32))
    with pytest.raises(LinkClosed, match="wrong key"):
        take(node, 32)


def test_bytes_thrown_back_at_their_sender_are_refused() -> None:
    """Reflection: what the head says is no proof of a node, before the handshake and after."""
    at_head, other = connected()
    head = Link(at_head, RUN_KEY, 0)
    head.flush()
    nonce = wait_until(lambda: available(other), 5.0, "the head's nonce")
    other.sendall(nonce + (1).to_bytes(4, "big") + bytes(4) + nonce)
    with pytest.raises(LinkClosed, match="wrong key"):
        take(head, 72)


def test_a_message_thrown_back_at_its_sender_is_refused(middle: Middle) -> None:
    middle.carry()
    middle.head.send({"order": 1})
    middle.head.flush()
    data = available(middle.to_head)
    middle.to_head.sendall(data)
    with pytest.raises(LinkClosed, match="not authentic"):
        take(middle.head, len(data))


def test_a_recorded_connection_is_refused_when_played_again(middle: Middle) -> None:
    middle.carry()
    middle.node.send({"status": 1})
    middle.carry()
    at_head, attacker = connected()
    head = Link(at_head, RUN_KEY, 0)
    head.flush()
    attacker.sendall(middle.said_by_node)
    with pytest.raises(LinkClosed, match="wrong key"):
        take(head, len(middle.said_by_node))


@pytest.mark.parametrize("trick", ["twice", "swapped", "dropped"])
def test_messages_repeated_reordered_or_left_out_are_refused(middle: Middle, trick: str) -> None:
    middle.carry()
    for number in range(3):
        middle.node.send({"status": number})
    data = available(middle.to_node)
    sizes = [0, len(data) // 3, 2 * len(data) // 3, len(data)]
    one, two, three = (data[begin:end] for begin, end in itertools.pairwise(sizes))
    told = {"twice": one + one, "swapped": two + one, "dropped": one + three}[trick]
    middle.to_head.sendall(told)
    with pytest.raises(LinkClosed, match="not authentic"):
        take(middle.head, len(told))


def test_every_flipped_bit_of_the_handshake_and_of_a_message_is_noticed() -> None:
    def flip(bit: int) -> Tamper:
        seen = 0

        def tamper(data: bytes) -> bytes:
            nonlocal seen
            at = bit // 8 - seen
            seen += len(data)
            if 0 <= at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]
            return data

        return tamper

    length = 32 + 8 + 32 + 4 + len(json.dumps({"status": 1})) + 32
    for bit in range(0, length * 8, 7):  # every byte, and all places in a byte
        middle = Middle()
        tamper = flip(bit)
        heard: list[Any] = []
        try:
            heard += middle.carry(to_head=tamper)[0]
            middle.node.send({"status": 1})
            heard += middle.carry(to_head=tamper)[0]
        except LinkClosed:
            pass
        else:
            # a longer length: the head waits for more, until its lease ends
            assert (72 * 8 <= bit < 76 * 8) or not middle.head.ready
        assert heard == []
        middle.close()


def test_ten_thousand_random_handshakes_and_messages_are_refused() -> None:
    chance = random.Random(5)
    at_head, other = connected()
    for _ in range(10_000):
        head = Link(at_head, RUN_KEY, 0)
        head._in += chance.randbytes(72)
        with pytest.raises(LinkClosed):
            head._shake_as_acceptor()
        assert not head.ready
    head._agree(bytes(72))
    for _ in range(10_000):
        head._in[:] = chance.randbytes(chance.randrange(200))
        try:
            assert head.take_body() is None
        except LinkClosed:
            pass
    other.close()
    at_head.close()


def test_a_message_too_long_is_refused_before_it_is_kept(middle: Middle) -> None:
    middle.carry()
    middle.to_head.sendall((MAX_MESSAGE + 1).to_bytes(4, "big"))
    with pytest.raises(LinkClosed, match="bytes"):
        take(middle.head, 4)


@pytest.mark.parametrize(
    "text", [b"not json", b"[" * 100_000, b"[]", b"7", b'"status"', b"null", b"\xff\xfe", b"9" * 10_000]
)
def test_an_authentic_message_that_is_no_object_closes_the_link(middle: Middle, text: bytes) -> None:
    middle.carry()
    keyed = middle.head._in_mac.copy()
    keyed.update(bytes(8) + text)
    mac = keyed.digest()
    data = len(text).to_bytes(4, "big") + text + mac
    middle.to_head.sendall(data)
    with pytest.raises(LinkClosed, match="not"):
        take(middle.head, len(data))


def test_a_closed_connection_is_told(middle: Middle) -> None:
    middle.carry()
    middle.to_head.close()
    with pytest.raises(LinkClosed, match="closed"):
        wait_until(lambda: middle.head.receive(), 5.0, "the end is seen")


def test_dialling_a_port_where_nobody_listens_shows_as_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LinkClosed, match="refused"):
        dialled = dial("127.0.0.1", port, RUN_KEY, 1, dialled=0)
        wait_until(dialled.receive, 5.0, "the refusal is seen")


def test_the_handshake_and_the_messages_have_their_golden_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = json.loads(GOLDEN.read_text())
    nonces = iter([bytes.fromhex(golden["nonce_head"]), bytes.fromhex(golden["nonce_node"])])
    monkeypatch.setattr(os, "urandom", lambda count: next(nonces))
    key = bytes.fromhex(golden["key"])
    middle = Middle(key, key, golden["node"])
    middle.carry()
    for message in golden["messages_of_head"]:
        middle.head.send(message)
    for message in golden["messages_of_node"]:
        middle.node.send(message)
    assert middle.carry() == (golden["messages_of_node"], golden["messages_of_head"])
    assert middle.said_by_head.hex() == golden["said_by_head"].replace(" ", "")
    assert middle.said_by_node.hex() == golden["said_by_node"].replace(" ", "")
    middle.close()
