"""What the processes that copy outputs say to each other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from orchestrator.node.link.link import Link, LinkClosed
from orchestrator.node.resume.channel import Channel, Refused

KEY = bytes(32)


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel, Link]]:
    """Both ends of a connection, and the link of the second."""
    here, there = socket.socketpair(socket.AF_UNIX)
    found: list[Channel] = []
    link = Link(there, KEY, 1)
    other = threading.Thread(target=lambda: found.append(Channel(link)))
    other.start()
    own = Channel(Link(here, KEY, 0, 1))
    other.join()
    yield own, found[0], link
    here.close()
    there.close()


@pytest.fixture(autouse=True)
def no_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)


def test_messages_and_pieces_arrive_in_order(channels: tuple[Channel, Channel, Link]) -> None:
    own, other, _ = channels
    own.send(do="list")
    own.send_piece(7, b"{not JSON")
    own.send_piece(1 << 40, b"")
    assert [other.receive() for _ in range(3)] == [{"do": "list"}, (7, b"{not JSON"), (1 << 40, b"")]


def test_an_error_is_raised_by_the_one_that_asked(channels: tuple[Channel, Channel, Link]) -> None:
    own, other, _ = channels
    other.send(error="no space")
    with pytest.raises(Refused, match="no space"):
        own.ask(do="list")


def test_a_piece_has_its_golden_bytes(channels: tuple[Channel, Channel, Link]) -> None:
    own, _, link = channels
    own.send_piece(258, b"abc")
    while (body := link.take_body()) is None:
        link.read()
    assert body.hex(" ", 1) == "00 00 00 00 00 00 00 01 02 61 62 63"


@pytest.mark.parametrize("body", [b"", b"\0\0", b"[]", b"nonsense", b"[" * 100_000])
def test_anything_else_ends_the_connection(channels: tuple[Channel, Channel, Link], body: bytes) -> None:
    own, _, link = channels
    link.send_body(body)
    with pytest.raises(LinkClosed):
        own.receive()


def test_a_connection_that_ends_is_no_message(channels: tuple[Channel, Channel, Link]) -> None:
    own, other, _ = channels
    other.close()
    with pytest.raises(LinkClosed):
        own.receive()
