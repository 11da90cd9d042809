"""Open a byte stream to the sshd of a host: look up its name and try its addresses, or start its ProxyCommand.

Knows nothing about SSH. Every function ends at its deadline.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import threading
import time
from typing import Any

from .config import Target
from .pipe import ConnectFailure, GroupMessage

ADDRESS_LIMIT = 5.0
"""Seconds for one of several addresses of a host: a dead IPv6 route must not use up the time of IPv4."""

DEAD_AFTER = 10
"""Seconds without an acknowledgement after which the kernel closes a connection."""

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


class DroppedError(Exception):
    """The server closed the connection before authentication. `greeting` is what it sent in place of SSH's banner."""

    def __init__(self, phase: str, greeting: str) -> None:
        super().__init__(f"closed during the {phase}")
        self.phase, self.greeting = phase, greeting


def dial(target: Target, deadline: float) -> socket.socket:
    """A TCP connection, or a pipe to the ProxyCommand. Raises ConnectFailure."""
    if target.proxy_command:
        return _start_proxy(target.proxy_command)
    addresses = _look_up(target, deadline)
    problems: list[tuple[str, OSError]] = []
    for number, address in enumerate(addresses, 1):
        left = max(0.1, deadline - time.monotonic())
        limit = left if number == len(addresses) else min(left, ADDRESS_LIMIT)
        try:
            return _connect_tcp(address, limit, target.bind_address)
        except OSError as error:
            problems.append((str(address[1][0]), error))
    raise _connect_failure(target, problems)


def _look_up(target: Target, deadline: float) -> list[Address]:
    """The addresses of a host. A resolver that does not answer is abandoned with its thread."""
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(target.address_family, socket.AF_UNSPEC)

    def ask(flags: int) -> list[Address]:
        entries = socket.getaddrinfo(target.hostname, target.port, family, socket.SOCK_STREAM, 0, flags)
        return [(kind, address) for kind, _, _, _, address in entries]

    with contextlib.suppress(socket.gaierror):
        return ask(socket.AI_NUMERICHOST)  # no need for a thread
    answers: queue.SimpleQueue[list[Address] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(ask(0))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=look_up, name="ssh-look-up", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.1, deadline - time.monotonic()))
    except queue.Empty:
        answer = TimeoutError("no answer from the name servers in time")
    if isinstance(answer, OSError):
        reason = str(answer.strerror or answer)
        fix = "check the name, or use an IP address"
        raise ConnectFailure(
            target.name, "name", f"{target.hostname}: {reason}", "ssh-name-unresolved", fix, GroupMessage(reason, fix)
        ) from answer
    return answer


def _connect_tcp(address: Address, limit: float, bind: str | None) -> socket.socket:
    family, peer = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(limit)
        if bind:
            sock.bind((bind, 0))
        sock.connect(peer)
        _find_dead_peers(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _find_dead_peers(sock: socket.socket) -> None:
    """Let the kernel detect a dead host, because paramiko does not check the keep-alive answers of SSH."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS calls the first TCP_KEEPALIVE and has no user time-out.
    options = {
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPALIVE": 5,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": DEAD_AFTER * 1000,
    }
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _start_proxy(command: str) -> socket.socket:
    """Start a ProxyCommand as ssh does, but with a socket pair, because paramiko needs a socket."""
    near, far = socket.socketpair()
    with far:
        process = subprocess.Popen(
            ("/bin/sh", "-c", f"exec {command}"),
            stdin=far.fileno(),
            stdout=far.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, name="ssh-proxy", daemon=True).start()  # so that no zombie is left
    return near


def _connect_failure(target: Target, problems: list[tuple[str, OSError]]) -> ConnectFailure:
    reason = "; ".join(f"{address} port {target.port}: {_words(error)}" for address, error in problems)
    reasons = "; ".join(dict.fromkeys(f"port {target.port}: {_words(error)}" for _, error in problems)) or "no address"
    code, fix = "ssh-unreachable", "check that the host is up, and its route and firewall"
    if any(isinstance(error, ConnectionRefusedError) for _, error in problems):
        code, fix = "ssh-connection-refused", "check that sshd is running there and that the port is correct"
    return ConnectFailure(target.name, "connect", reason or "no address", code, fix, GroupMessage(reasons, fix))


def _words(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
