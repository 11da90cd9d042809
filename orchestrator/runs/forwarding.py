"""Forward connections to a port here to a port of a host, over SSH: `port-forward`.

Each connection gets a channel with a few lines of Python at its other end. So it works with every way to reach a host,
also where sshd forbids forwarding, and SSH limits how much is under way.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from ..errors import HeldError, OrchError, UnreachableError
from ..hosts.bootstrap import interpreter_of
from ..hosts.fleet import Fleet
from ..inventory.model import Host
from ..output.terminal import one_line
from ..ssh.dialer import quote
from ..ssh.noise import NoMarker, read_marker
from ..ssh.pipe import Connection, Pipe

LOCAL = "127.0.0.1"
OPEN_WINDOW = 15.0  # s for a channel, with the connection there
STATUS_WINDOW = 5.0  # s for the exit status of a channel that has ended
CHANNELS = 6  # at a time, as browsers do; sshd allows ten in a connection (MaxSessions)
MAX_CONNECTIONS = 4  # a new one is rare, and older ones have few channels left
CHUNK = 1 << 16
REFUSED = 7  # exit status of BRIDGE if nothing listens on the port

BRIDGE = """
import os, socket, sys, threading
for host in ("127.0.0.1", "::1", socket.gethostname()):
    try:
        peer = socket.create_connection((host, PORT), 5)
        break
    except OSError as error:
        problem = error
else:
    sys.stderr.write(str(problem))
    sys.exit(7)
peer.settimeout(None)
def write(data):
    while data:
        data = data[os.write(1, data):]
def send():
    while True:
        data = os.read(0, 65536)
        if not data:
            break
        peer.sendall(data)
    peer.shutdown(1)
write(b"\\n" + NONCE + b"\\n")
threading.Thread(target=send, daemon=True).start()
while True:
    data = peer.recv(65536)
    if not data:
        break
    write(data)
os._exit(0)
"""


def listen(port: int) -> socket.socket:
    """Listen on this machine only. Raises HeldError if the port is in use."""
    try:
        return socket.create_server((LOCAL, port), backlog=64)
    except OSError as error:
        why = "is in use" if port >= 1024 else error.strerror
        raise HeldError(
            f"port {port} of this machine {why}; choose another with --local-port, or 0 for a free one"
        ) from error


class Forwarder:
    """Joins accepted connections to a port of one host."""

    def __init__(
        self, fleet: Fleet, host: Host, port: int, nonce: Callable[[], str], warn: Callable[[str], None]
    ) -> None:
        self._fleet, self._host, self._port, self._nonce, self._warn = fleet, host, port, nonce, warn
        self._connections: list[Connection] = []  # the last one takes new channels
        self._connecting = threading.Lock()
        self._free = threading.Semaphore(CHANNELS)
        self._reported = ""

    def check(self) -> str:
        """Why the port cannot be reached now; "" if it can. Raises UnreachableError if the host cannot be."""
        try:
            pipe, _ = self._open()
        except _PortRefused as refused:
            return str(refused)
        pipe.close()
        return ""

    def serve(self, listener: socket.socket) -> NoReturn:
        """Accept connections until an interrupt."""
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _join(self, client: socket.socket) -> None:
        with self._free, client:
            try:
                pipe, first = self._open()
            except OrchError as error:
                self._report(str(error))
                return
            self._reported = ""
            sender = threading.Thread(target=_send, args=(client, pipe), daemon=True)
            sender.start()
            try:
                data = first
                while data or (data := pipe.recv(CHUNK, None)):
                    client.sendall(data)
                    data = b""
            except OSError:
                pass  # the client has gone
            finally:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)  # wakes the sender
                sender.join()
                pipe.close()

    def _report(self, message: str) -> None:
        """Once: a browser tries again and again."""
        if message != self._reported:
            self._reported = message
            self._warn(message)

    def _open(self) -> tuple[Pipe, bytes]:
        """A pipe to the port, and its first bytes. Raises _PortRefused, UnreachableError."""
        nonce = self._nonce()
        code = f"PORT, NONCE = {self._port}, {nonce.encode()!r}\n{BRIDGE}"
        encoded = base64.b64encode(code.encode()).decode()
        words = [*interpreter_of(self._host.python), "-I", "-S", "-c"]
        command = f"exec {quote(words)} 'import base64;exec(base64.b64decode(\"{encoded}\"))'"
        pipe = self._open_channel(command)
        marker = re.compile(rb"\n%s\n" % re.escape(nonce.encode()))
        try:
            return pipe, read_marker(pipe.recv, marker, time.monotonic() + OPEN_WINDOW)[1]
        except NoMarker:
            raise self._refusal(pipe) from None

    def _open_channel(self, command: str) -> Pipe:
        with self._connecting:
            if self._connections:
                # it may have been lost, or sshd has not yet noticed the end of channels: take a new one then
                with contextlib.suppress(UnreachableError):
                    return self._connections[-1].open(command, OPEN_WINDOW)
            self._connections.append(self._fleet.connect(self._host))
            for unused in self._connections[:-MAX_CONNECTIONS]:
                unused.close()
            del self._connections[:-MAX_CONNECTIONS]
            return self._connections[-1].open(command, OPEN_WINDOW)

    def _refusal(self, pipe: Pipe) -> OrchError:
        status = pipe.exit_status(STATUS_WINDOW)
        why = one_line(pipe.stderr().decode("utf-8", "replace").strip()[-200:])
        pipe.close()
        if status == REFUSED:
            return _PortRefused(f"{self._host.name}: port {self._port}: {why}")
        return UnreachableError(f"{self._host.name}: port {self._port}: {why or 'the connection was lost'}")


class _PortRefused(OrchError):
    """The host is reachable, but nothing listens on the port."""


def _send(client: socket.socket, pipe: Pipe) -> None:
    try:
        while data := client.recv(CHUNK):
            pipe.send(data)
        pipe.close_write()
    except OSError:
        pass  # one of both has gone, which the other direction notices
