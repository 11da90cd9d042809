"""The guard's request socket: what other processes of this user on this host ask of a run. Never blocks.

An abstract Unix socket, so it leaves no file and needs no path. Both sides check with SO_PEERCRED that the other is of
the same user: any user can take an abstract name. A request is a line of JSON, and so is its answer.
"""

import hashlib
import json
import os
import select
import socket
import struct
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

MOST_GUESTS = 16
LONGEST = 64 * 1024  # bytes of a request
LONGEST_ANSWER = 4 << 20  # bytes: secrets may take 1 MiB
WINDOW = 10.0  # s for a request and its answer

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class NoAnswer(Exception):
    """There is no guard, or it does not answer; the text says which."""


def socket_name(folder: str) -> bytes:
    """The abstract name for the run in a folder. Hosts that share a kernel have folders of their own."""
    status = os.stat(folder)
    text = "%s %d %d" % (os.path.basename(folder), status.st_dev, status.st_ino)
    return b"\0ddp-orch-%d-" % os.geteuid() + hashlib.sha256(text.encode()).hexdigest()[:32].encode()


def peer(connection: socket.socket) -> Tuple[int, int]:
    """The pid and the uid of the other side."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def is_own(connection: socket.socket) -> bool:
    """Whether the other side is a process of this user."""
    return peer(connection)[1] == os.geteuid()


def ask(folder: str, request: Dict[str, Any], window: float = WINDOW) -> Dict[str, Any]:
    """Ask the guard of the run in a folder. Blocks for `window` seconds at most. Raises NoAnswer."""
    deadline = time.monotonic() + window
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.settimeout(window)
            connection.connect(socket_name(folder))
            if not is_own(connection):
                raise NoAnswer("another user has taken the name of the guard's socket")
            connection.sendall(json.dumps(request).encode("ascii") + b"\n")
            raw = b""
            while not raw.endswith(b"\n"):
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                data = connection.recv(1 << 16)
                if not data or len(raw) > LONGEST_ANSWER:
                    raise NoAnswer("the guard has closed the connection")
                raw += data
            answer: Dict[str, Any] = json.loads(raw)
            return answer
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            text = "its guard does not answer (%s); if it is just starting or ending, try again in some seconds"
            raise NoAnswer(text % why) from error


class _Guest:
    """One connection: first its request, then the answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.opened_at = time.monotonic()
        self.received = b""
        self.answer: Optional[bytes] = None


class Requests:
    """`respond` gets each request, and gives the answer at once."""

    def __init__(self, folder: str, respond: Callable[[Dict[str, Any]], Dict[str, Any]]) -> None:
        self._respond = respond
        self._guests: Dict[int, _Guest] = {}
        self._listener: Optional[socket.socket] = None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            listener.bind(socket_name(folder))
            listener.listen(MOST_GUESTS)
            self._listener = listener
        except OSError:
            listener.close()  # another user has taken the name: the run works without requests

    def watched(self) -> Iterator[Tuple[int, int]]:
        """Descriptors, and the events of poll() that `on_ready` shall be called for."""
        if self._listener is not None and len(self._guests) < MOST_GUESTS:
            yield self._listener.fileno(), select.POLLIN
        for handle, guest in self._guests.items():
            yield handle, select.POLLIN if guest.answer is None else select.POLLOUT

    def due_at(self) -> float:
        """When `drop_late` has to be called, by the monotonic clock."""
        return min((guest.opened_at for guest in self._guests.values()), default=float("inf")) + WINDOW

    def drop_late(self, now: float) -> None:
        for handle in [handle for handle, guest in self._guests.items() if now >= guest.opened_at + WINDOW]:
            self._drop(handle)

    def on_ready(self, handle: int) -> None:
        if self._listener is not None and handle == self._listener.fileno():
            self._accept(self._listener)
        elif handle in self._guests:
            try:
                self._exchange(self._guests[handle])
            except BlockingIOError:
                pass
            except OSError:
                self._drop(handle)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = listener.accept()[0]
        except OSError:
            return
        connection.setblocking(False)
        if is_own(connection):
            self._guests[connection.fileno()] = _Guest(connection)
        else:
            connection.close()

    def _exchange(self, guest: _Guest) -> None:
        if guest.answer is None:
            data = guest.connection.recv(1 << 16)
            guest.received += data
            if b"\n" not in guest.received:
                if not data or len(guest.received) > LONGEST:
                    self._drop(guest.connection.fileno())
                return
            guest.answer = self._answer(guest.received.partition(b"\n")[0])
        guest.answer = guest.answer[guest.connection.send(guest.answer) :]
        if not guest.answer:
            self._drop(guest.connection.fileno())

    def _answer(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        known = isinstance(request, dict)
        answer = self._respond(request) if known else {"error": "not a JSON object", "code": "unknown"}
        return json.dumps(answer).encode("ascii") + b"\n"

    def _drop(self, handle: int) -> None:
        self._guests.pop(handle).connection.close()
