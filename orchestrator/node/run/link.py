"""The recorders' connection to the head's recorder on the cluster network: authenticated both ways, JSON objects.

The controller makes a key for each run. The head has it; any other node has a key of its own, HMAC(run key, node
number), so that no node can pose as another. Handshake, then messages (docs/protocol.md):

    head -> node   nonce_h (32)
    node -> head   nonce_n (32)  node number (u32)  HMAC(key of the node, "node" nonce_h nonce_n number)
    head -> node   HMAC(key of the node, "head" nonce_h nonce_n)
    both           length (u32)  JSON  HMAC(key of this direction, sequence number (u64) JSON)

A message cannot be forged, replayed, reordered or reflected: each direction has its own key and counts.
"""

import hashlib
import hmac
import json
import os
import socket
import struct
import time
from typing import Any, Dict, List, Optional

BEAT = 1.0  # s between messages when there is nothing to say
LEASE = 8.0  # s without a message after which the other side counts as lost
MAX_MESSAGE = 1024 * 1024
HANDSHAKE_WINDOW = 5.0  # s

_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_MAC = 32


class LinkClosed(Exception):
    """The other side has gone, or is not who it should be."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def node_key(run_key: bytes, node: int) -> bytes:
    """The key of one node's link; the controller makes it as well (orchestrator/plan/plan.py)."""
    return _mac(run_key, _LENGTH.pack(node))


class Link:
    """One end of a connection. Never blocks: `receive` when its descriptor is readable, `flush` when writable."""

    def __init__(self, connection: socket.socket, key: bytes, node: Optional[int]) -> None:
        """`node`: our number; None on the head, which learns the number of the other side.

        `key`: the node's own; on the head the run's.
        """
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._key = key
        self._is_head = node is None
        self.node = node
        self.ready = False
        self.heard_at = self.opened_at = time.monotonic()
        self._nonce = os.urandom(32)
        self._peer_nonce = b""
        self._in = bytearray()
        self._out = bytearray()
        self._received = self._sent = 0
        self._in_key = self._out_key = b""
        if self._is_head:
            self._out += self._nonce

    def fileno(self) -> int:
        return self._socket.fileno()

    def wants_write(self) -> bool:
        return bool(self._out)

    def send(self, message: Dict[str, Any]) -> None:
        if not self.ready:
            return
        body = json.dumps(message).encode("ascii")
        self._out += _LENGTH.pack(len(body)) + body + _mac(self._out_key, _COUNT.pack(self._sent), body)
        self._sent += 1
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self) -> List[Dict[str, Any]]:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkClosed(str(error)) from error
        if not data:
            raise LinkClosed("closed by the other side")
        self._in += data
        if not self.ready and not (self._shake_as_head() if self._is_head else self._shake_as_node()):
            return []
        messages: List[Dict[str, Any]] = []
        while True:
            message = self._message()
            if message is None:
                return messages
            messages.append(message)
            self.heard_at = time.monotonic()

    def _take(self, count: int) -> Optional[bytes]:
        if len(self._in) < count:
            return None
        data = bytes(self._in[:count])
        del self._in[:count]
        return data

    def _shake_as_head(self) -> bool:
        answer = self._take(32 + 4 + _MAC)
        if answer is None:
            return False
        self._peer_nonce, number, mac = answer[:32], answer[32:36], answer[36:]
        claimed = int(_LENGTH.unpack(number)[0])
        self._key = node_key(self._key, claimed)
        if not hmac.compare_digest(mac, _mac(self._key, b"node", self._nonce, self._peer_nonce, number)):
            raise LinkClosed("wrong key")
        self.node = claimed
        self._out += _mac(self._key, b"head", self._nonce, self._peer_nonce)
        self._agree(self._nonce + self._peer_nonce)
        self.flush()
        return True

    def _shake_as_node(self) -> bool:
        if not self._peer_nonce:
            nonce = self._take(32)
            if nonce is None:
                return False
            self._peer_nonce = nonce
            number = _LENGTH.pack(self.node or 0)
            self._out += self._nonce + number + _mac(self._key, b"node", nonce, self._nonce, number)
            self.flush()
        mac = self._take(_MAC)
        if mac is None:
            return False
        if not hmac.compare_digest(mac, _mac(self._key, b"head", self._peer_nonce, self._nonce)):
            raise LinkClosed("wrong key")
        self._agree(self._peer_nonce + self._nonce)
        return True

    def _agree(self, nonces: bytes) -> None:
        to_node, to_head = _mac(self._key, b"to node", nonces), _mac(self._key, b"to head", nonces)
        self._in_key, self._out_key = (to_head, to_node) if self._is_head else (to_node, to_head)
        self.ready = True
        self.heard_at = time.monotonic()

    def _message(self) -> Optional[Dict[str, Any]]:
        if len(self._in) < _LENGTH.size:
            return None
        length = int(_LENGTH.unpack_from(self._in)[0])
        if length > MAX_MESSAGE:
            raise LinkClosed("message of %d bytes" % length)
        if len(self._in) < _LENGTH.size + length + _MAC:
            return None
        raw = self._take(_LENGTH.size + length + _MAC) or b""
        body, mac = raw[_LENGTH.size : -_MAC], raw[-_MAC:]
        if not hmac.compare_digest(mac, _mac(self._in_key, _COUNT.pack(self._received), body)):
            raise LinkClosed("a message that is not authentic")
        self._received += 1
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise LinkClosed("a message that is not JSON") from error
        if not isinstance(message, dict):
            raise LinkClosed("a message that is not an object")
        return message

    def close(self) -> None:
        self._socket.close()


def dial(address: str, port: int, key: bytes, node: int) -> Link:
    """Begin to connect to the head's recorder, without waiting. A failure shows later as LinkClosed."""
    connection = socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC
    )
    connection.setblocking(False)
    try:
        connection.connect((address, port))
    except BlockingIOError:
        pass
    except OSError as error:
        connection.close()
        raise LinkClosed(str(error)) from error
    return Link(connection, key, node)
