"""Messages and bytes between the processes that copy output folders, by the handshake of the link. Blocks.

A body that begins with `{` is a JSON object; one that begins with a zero byte is a piece of a file, after its offset.
"""

import json
import select
import socket
import struct
from typing import Any, Dict, Sequence, Tuple, Union

from ..link.link import HANDSHAKE_WINDOW, Link, LinkClosed, message_of

QUIET = 60.0  # s without a byte after which a connection is given up
READ = 1 << 20  # bytes
_PIECE = struct.Struct(">BQ")

Piece = Tuple[int, bytes]  # offset and bytes


class Channel:
    """Raises LinkClosed where the connection breaks, or the other side sends what it should not."""

    def __init__(self, link: Link) -> None:
        self._link = link
        link.flush()
        while not link.ready:
            self._wait(select.POLLIN, HANDSHAKE_WINDOW)
            link.read(READ)
        self.peer = link.peer

    def send(self, **message: Any) -> None:
        self._send(json.dumps(message).encode("ascii"))

    def send_piece(self, offset: int, data: bytes) -> None:
        self._send(_PIECE.pack(0, offset) + data)

    def _send(self, body: bytes) -> None:
        self._link.send_body(body)
        while self._link.wants_write():
            self._wait(select.POLLOUT, QUIET)
            self._link.flush()

    def receive(self) -> Union[Dict[str, Any], Piece]:
        body = self._link.take_body()
        while body is None:
            self._wait(select.POLLIN, QUIET)
            self._link.read(READ)
            body = self._link.take_body()
        if body[:1] == b"\0" and len(body) >= _PIECE.size:
            return _PIECE.unpack_from(body)[1], body[_PIECE.size :]
        return message_of(body)

    def ask(self, **request: Any) -> Dict[str, Any]:
        """The answer to a request. Raises Refused with the error that the other side has answered with."""
        self.send(**request)
        return self.answer()

    def answer(self) -> Dict[str, Any]:
        message = self.receive()
        if not isinstance(message, dict):
            raise LinkClosed("a piece of a file in place of an answer")
        if "error" in message:
            raise Refused(str(message["error"]))
        return message

    def _wait(self, event: int, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._link.fileno(), event)
        if not poll.poll(int(seconds * 1000)):
            raise LinkClosed("silent for %d s" % seconds)

    def close(self) -> None:
        self._link.close()


class Refused(Exception):
    """The other side cannot do what it was asked; the text says why."""


def connect(addresses: Sequence[str], port: int, key: bytes, node: int, target: int) -> Channel:
    """Connect to the server of a node, at the first of its addresses that answers. Raises LinkClosed."""
    reasons = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), HANDSHAKE_WINDOW)
        except OSError as error:
            reasons.append("%s: %s" % (address, error.strerror or error))
            continue
        try:
            return Channel(Link(connection, key, node, target))
        except LinkClosed as error:
            connection.close()
            reasons.append("%s: %s" % (address, error))
    raise LinkClosed(", ".join(reasons) or "it has no address")
