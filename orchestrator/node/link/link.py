"""Connections between the recorders of a run on the cluster network: authenticated both ways, JSON objects.

Every node has the key of the run, because any node may become the head (ADR 10). A handshake proves to each side
that the other one has the key, and which node it is. After it, both send messages (docs/protocol.md):

    acceptor -> dialer   nonce_a (32)
    dialer -> acceptor   nonce_d (32)  numbers of dialer and acceptor (u32 each)  HMAC(key, "dial" nonces numbers)
    acceptor -> dialer   HMAC(key, "accept" nonces numbers)
    both                 length (u32)  JSON  HMAC(key of this direction, sequence number (u64) JSON)

A message cannot be forged, replayed, reordered or reflected: each direction has its own key and counts. The dialer
names the node it wants, so nobody can lead it to another one.
"""

import hmac
import json
import os
import socket
import struct
import time
from typing import Any, Dict, List, Optional, Tuple

BEAT = 1.0  # s between messages when there is nothing to say
LEASE = 8.0  # s without a message after which the other side counts as lost, where the spec has none
JOIN_WINDOW = 20.0  # s for the first link to the head, within `prepare`
MAX_MESSAGE = 1024 * 1024
HANDSHAKE_WINDOW = 5.0  # s
# From linux/tcp.h: the first six retries of a lost packet do not wait longer and longer. On a link that loses many
# packets, the pause after three losses in a row is otherwise as long as a lease.
TCP_THIN_LINEAR_TIMEOUTS = 16

_LENGTH = struct.Struct(">I")
_NUMBERS = struct.Struct(">II")  # of dialer and acceptor
_COUNT = struct.Struct(">Q")
_MAC = 32


def lease(spec: Dict[str, Any]) -> float:
    return float(spec.get("lease", LEASE))


def elects(spec: Dict[str, Any]) -> bool:
    """Whether the nodes elect another head when theirs is lost."""
    return bool(spec.get("head_lost") == "elect")


def beat(lease: float) -> float:
    """Seconds between messages: a lease must outlast the loss of several."""
    return min(BEAT, lease / 8)


class LinkClosed(Exception):
    """The other side has gone, or is not who it should be."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def _message_mac(keyed: hmac.HMAC, number: int, body: bytes) -> bytes:
    """`keyed`: with the key and nothing else. Its copy costs half of a new one where it counts: on an idle host."""
    mac = keyed.copy()
    mac.update(_COUNT.pack(number))
    mac.update(body)
    return mac.digest()


class Link:
    """One end of a connection. Never blocks: `receive` when its descriptor is readable, `flush` when writable."""

    def __init__(self, connection: socket.socket, run_key: bytes, node: int, dialled: Optional[int] = None) -> None:
        """`node`: our number. `dialled`: the node that we have dialled; None for a connection that was accepted."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
        except OSError:
            pass  # nothing depends on it
        self._socket = connection
        self._key = run_key
        self._node = node
        self._dialled = dialled
        self.peer = dialled  # an acceptor knows it when `ready`
        self.ready = False
        self.heard_at = self.opened_at = time.monotonic()
        self._nonce = os.urandom(32)
        self._peer_nonce = b""
        self._in = bytearray()
        self._out = bytearray()
        self._received = self._sent = 0
        self._in_mac = self._out_mac = hmac.new(b"", digestmod="sha256")
        if dialled is None:
            self._out += self._nonce

    def fileno(self) -> int:
        return self._socket.fileno()

    def local_address(self) -> str:
        """The address of this host that the other side has reached."""
        return str(self._socket.getsockname()[0])

    def ends(self) -> Optional[Tuple[str, str]]:
        """The addresses of this host and of the other one; None: it is no longer connected."""
        try:
            return self.local_address(), str(self._socket.getpeername()[0])
        except OSError:
            return None

    def wants_write(self) -> bool:
        return bool(self._out)

    def send(self, message: Dict[str, Any]) -> None:
        self.send_body(json.dumps(message).encode("ascii"))

    def send_body(self, body: bytes) -> None:
        """Send bytes as they are. Who sends other than JSON has no use for `receive`."""
        if not self.ready:
            return
        self._out += _LENGTH.pack(len(body)) + body + _message_mac(self._out_mac, self._sent, body)
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
        self.read()
        messages: List[Dict[str, Any]] = []
        while True:
            body = self.take_body()
            if body is None:
                return messages
            messages.append(message_of(body))

    def read(self, most: int = 1 << 16) -> None:
        """Take in what has arrived, and continue the handshake."""
        try:
            data = self._socket.recv(most)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkClosed(str(error)) from error
        if not data:
            raise LinkClosed("closed by the other side")
        self._in += data
        if not self.ready:
            self._shake_as_acceptor() if self._dialled is None else self._shake_as_dialer()

    def _take(self, count: int) -> Optional[bytes]:
        if len(self._in) < count:
            return None
        data = bytes(self._in[:count])
        del self._in[:count]
        return data

    def _shake_as_acceptor(self) -> None:
        answer = self._take(32 + _NUMBERS.size + _MAC)
        if answer is None:
            return
        self._peer_nonce, numbers, mac = answer[:32], answer[32:-_MAC], answer[-_MAC:]
        dialer, acceptor = _NUMBERS.unpack(numbers)
        proof = self._nonce + self._peer_nonce + numbers
        if not hmac.compare_digest(mac, _mac(self._key, b"dial", proof)):
            raise LinkClosed("wrong key")
        if acceptor != self._node or dialer == self._node:
            raise LinkClosed("meant for another node")
        self.peer = int(dialer)
        self._out += _mac(self._key, b"accept", proof)
        self._agree(proof)
        self.flush()

    def _shake_as_dialer(self) -> None:
        numbers = _NUMBERS.pack(self._node, self._dialled or 0)
        if not self._peer_nonce:
            nonce = self._take(32)
            if nonce is None:
                return
            self._peer_nonce = nonce
            self._out += self._nonce + numbers + _mac(self._key, b"dial", nonce + self._nonce + numbers)
            self.flush()
        mac = self._take(_MAC)
        if mac is None:
            return
        proof = self._peer_nonce + self._nonce + numbers
        if not hmac.compare_digest(mac, _mac(self._key, b"accept", proof)):
            raise LinkClosed("wrong key")
        self._agree(proof)

    def _agree(self, proof: bytes) -> None:
        keys = [_mac(self._key, direction, proof) for direction in (b"to acceptor", b"to dialer")]
        to_acceptor, to_dialer = [hmac.new(key, digestmod="sha256") for key in keys]
        accepted = self._dialled is None
        self._in_mac, self._out_mac = (to_acceptor, to_dialer) if accepted else (to_dialer, to_acceptor)
        self.ready = True
        self.heard_at = time.monotonic()

    def take_body(self) -> Optional[bytes]:
        """The next message as bytes, once all of it has been read."""
        if not self.ready or len(self._in) < _LENGTH.size:
            return None
        length = int(_LENGTH.unpack_from(self._in)[0])
        if length > MAX_MESSAGE:
            raise LinkClosed("message of %d bytes" % length)
        if len(self._in) < _LENGTH.size + length + _MAC:
            return None
        raw = self._take(_LENGTH.size + length + _MAC) or b""
        body, mac = raw[_LENGTH.size : -_MAC], raw[-_MAC:]
        if not hmac.compare_digest(mac, _message_mac(self._in_mac, self._received, body)):
            raise LinkClosed("a message that is not authentic")
        self._received += 1
        self.heard_at = time.monotonic()
        return body

    def close(self) -> None:
        self._socket.close()


def message_of(body: bytes) -> Dict[str, Any]:
    """Raises LinkClosed where it is not a JSON object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise LinkClosed("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise LinkClosed("a message that is not an object")
    return message


def dial(address: str, port: int, run_key: bytes, node: int, dialled: int) -> Link:
    """Begin to connect to the recorder of the node `dialled`, without waiting. A failure shows later as LinkClosed."""
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
    return Link(connection, run_key, node, dialled)
