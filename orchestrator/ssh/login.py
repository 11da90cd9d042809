"""Log in over SSH with fabric and paramiko, and open pipes over the connection. Retries nothing.

By default fabric accepts every host key and may forward the agent. paramiko waits up to an hour for an answer, prints
tracebacks, and mixes up the errors of channels that are opened at the same time. This module and `paramiko_fixes.py`
fix that for hosts and jump hosts; no connection is made in another way.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import fabric
import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

from .config import SECOND_FACTOR, Target
from .keys import AgentError, Identity, Offer
from .paramiko_fixes import ChannelRefused, Transport, disabled_algorithms
from .pipe import END_GRACE, END_WINDOW, STALL_LIMIT, STDERR_KEPT, STDERR_LAG, ConnectFailure, GroupMessage, Tail
from .tcp import DroppedError

# paramiko also logs the tracebacks of its exceptions, to stderr if logging is not configured.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

WAKE_INTERVAL = 5.0
"""Seconds after which paramiko's thread looks whether it is to end; 0.1 by default. `close` wakes it at once."""

SESSION_ENDS, SESSION_PAUSE = 1.0, 0.05
"""Seconds that sshd gets to end a session, and between two looks."""


_END = (
    # each connection has an sshd of its own: its other children are our commands, each the leader of a process group
    "cd /proc; case $(cat $PPID/comm) in sshd*|dropbear*) ;; *) exit 1;; esac; groups=; "
    'for file in $(grep -lsx "PPid:.$PPID" [0-9]*/status); do '
    'pid=${file%/status}; [ $pid = $$ ] || groups="$groups $pid"; done; '
    "signal() { for group in $groups; do kill -s $1 -- -$group; done; }; "
    # ignore zombies: in some containers nothing reaps orphans
    'left() { for group in $groups; do grep -qs ") [^ZX] [0-9]* $group " [0-9]*/stat && return 0; done; return 1; }; '
    f"signal TERM; for try in $(seq {round(10 * END_GRACE)}); do left || exit 0; sleep 0.1; done; "
    f"signal KILL; for try in $(seq {round(10 * END_WINDOW)}); do left || exit 0; sleep 0.1; done; exit 1"
)
"""For `sh -c` on a host, in single quotes: ends the other commands of this connection; status 0 when none is left."""


class Trust(Protocol):
    """Decides whether to trust a host key."""

    def key_types(self, target: Target) -> frozenset[str]:
        """The types of the keys on file for it."""

    def check(self, target: Target, key: bytes) -> None:
        """Raises ConnectFailure when the key is not to be trusted."""


class SshConnection:
    """A `Connection` to a host over SSH."""

    def __init__(self, target: Target, connection: _Connection) -> None:
        self.target = target
        self._connection = connection
        self._transport: Transport = connection.transport
        self.accepted_key = self._transport.accepted_key
        self._transport.sock.settimeout(WAKE_INTERVAL)

    @property
    def alive(self) -> bool:
        """False if the connection is known to be lost. True does not mean that it works."""
        return bool(self._transport.is_active())

    def open(self, command: str, timeout: float) -> SshPipe:
        deadline = time.monotonic() + timeout
        try:
            channel = self._open_channel(deadline)
            _exec(channel, command.encode(errors="surrogateescape"), deadline)
        except ChannelRefused as refused:
            fix = "raise MaxSessions in its sshd_config, or check ForceCommand and the login shell"
            raise ConnectFailure(self.target.name, "session", refused.reason, "unknown", fix) from refused
        except (paramiko.SSHException, EOFError, OSError) as error:
            reason = "no answer in time" if time.monotonic() >= deadline else "the connection was lost"
            raise ConnectFailure(self.target.name, "session", reason, "ssh-session-dropped", "try again") from error
        return SshPipe(channel, self)

    def _open_channel(self, deadline: float) -> paramiko.Channel:
        """Open a channel. With MaxSessions 1, sshd refuses a command until it has cleaned up the last one."""
        patience = min(deadline, time.monotonic() + SESSION_ENDS)
        while True:
            try:
                return self._transport.open_refusable("session", None, deadline - time.monotonic())
            except ChannelRefused:
                if time.monotonic() + SESSION_PAUSE >= patience:
                    raise
            time.sleep(SESSION_PAUSE)

    def close(self) -> None:
        # paramiko's thread blocks in a read that closing the socket does not wake, and no FIN would be sent.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._transport.sock.shutdown(socket.SHUT_RDWR)
        self._connection.client.close()


class SshPipe:
    """A `Pipe` over a channel."""

    def __init__(self, channel: paramiko.Channel, session: SshConnection) -> None:
        self._channel = channel
        self._session = session
        channel.settimeout(STALL_LIMIT)
        # the channel has one timeout for both directions, so `recv` waits for this event instead
        self._readable = threading.Event()
        channel.in_buffer.set_event(self._readable)
        self._tail = Tail()
        self._drainer = threading.Thread(target=self._drain_stderr, name="ssh-stderr", daemon=True)
        self._drainer.start()

    def recv(self, size: int, timeout: float | None) -> bytes:
        if not self._readable.wait(timeout):
            raise TimeoutError(f"the host sent nothing for {timeout} s")
        try:
            return self._channel.recv(size)
        except (OSError, EOFError, paramiko.SSHException):
            return b""  # the connection was lost

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except TimeoutError:
            raise
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise BrokenPipeError("the connection was lost, or the command has ended") from error
        if not self._channel.get_transport().is_active():
            raise BrokenPipeError("the connection was lost")  # on a dead link, paramiko drops the message silently

    def close_write(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def stderr(self) -> bytes:
        return self._tail.value()

    def listen_to_stderr(self, take: Callable[[bytes], None]) -> None:
        self._tail.listen(take)

    def exit_status(self, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        self._channel.status_event.wait(timeout)
        self._drainer.join(
            min(STDERR_LAG, max(0.0, deadline - time.monotonic()))
        )  # so that `stderr` is complete from now on
        return self._channel.exit_status if self._channel.exit_status >= 0 else None

    def end(self) -> bool:
        # SSH has a message for signals, but sshd obeys it only since 7.9, and never for root
        try:
            ending = self._session.open(f"exec sh -c '{_END}'", END_WINDOW)
        except ConnectFailure:
            return False
        return ending.exit_status(END_GRACE + 2 * END_WINDOW) == 0

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def _drain_stderr(self) -> None:
        """Unread stderr would fill the channel's window, which stdout shares, and stop the command."""
        while True:
            try:
                data = self._channel.recv_stderr(STDERR_KEPT)
            except TimeoutError:
                continue
            except (OSError, EOFError, paramiko.SSHException):
                return
            if not data:
                return
            self._tail.add(data)


Link = socket.socket | SshConnection
"""The transport of a login: a connected socket, or the connection to a jump host."""


def login(target: Target, link: Link, trust: Trust, offer: Offer, deadline: float) -> SshConnection:
    """Log in over a connected socket, or through a jump host's session. Owns the link's socket, also when it fails.

    Raises `DroppedError` for what may be tried again, `ConnectFailure` for what must not be.
    """
    connection = _Connection(target, link, trust, offer, deadline)
    try:
        connection.open()
        return SshConnection(target, connection)
    except BaseException as error:
        transport: Transport | None = connection.client.get_transport()
        phase = transport.phase if transport else "connection"
        connection.client.close()
        if isinstance(link, socket.socket):
            link.close()
        if isinstance(error, ChannelRefused):
            raise _jump_refused(target, error) from error
        if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise _failure(target, phase, transport, error, deadline) from error
        raise


class _Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """fabric's connection with the host key policy, key order and time limits of ddp-orch."""

    inline_ssh_env = False  # a class attribute: fabric writes attributes that it does not know to its config

    def __init__(
        self, target: Target, link: socket.socket | SshConnection, trust: Trust, offer: Offer, deadline: float
    ) -> None:
        left = max(0.1, deadline - time.monotonic())
        key_types = trust.key_types(target)
        options = {
            "auth_strategy": _KeysOnly(target, offer, deadline),
            "banner_timeout": left,
            "channel_timeout": left,
            "disabled_algorithms": disabled_algorithms(target),
            "timeout": left,
            "transport_factory": lambda sock, disabled_algorithms: Transport(sock, disabled_algorithms, key_types),
        }
        if not isinstance(link, SshConnection):
            options["sock"] = link
        super().__init__(
            host=target.hostname,
            user=target.user,
            port=target.port,
            # Empty, because config.py reads ssh_config, not fabric. One per connection: it is not thread-safe.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=link._connection if isinstance(link, SshConnection) else False,
            forward_agent=False,
            connect_kwargs=options,
        )
        self._set(_deadline=deadline)
        self.client.set_missing_host_key_policy(_Policy(target, trust))

    def open_gateway(self) -> Any:
        left = self._deadline - time.monotonic()
        return self.gateway.transport.open_refusable("direct-tcpip", (self.host, self.port), left)


class _Policy(paramiko.MissingHostKeyPolicy):
    """Checks every host key: paramiko gets no known_hosts, so it asks this policy each time."""

    def __init__(self, target: Target, trust: Trust) -> None:
        self._target, self._trust = target, trust

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        self._trust.check(self._target, key.asbytes())


class _KeysOnly:
    """Logs in with the offered keys, each tried once; never with a password."""

    def __init__(self, target: Target, offer: Offer, deadline: float) -> None:
        self._target, self._offer, self._deadline = target, offer, deadline

    def authenticate(self, transport: Transport) -> None:
        tried: list[Identity] = []
        for identity in self._offer.identities:
            transport.auth_timeout = max(0.1, self._deadline - time.monotonic())
            tried.append(identity)
            try:
                missing = transport.auth_publickey(self._target.user, identity.key)  # type: ignore[arg-type]
            except paramiko.BadAuthenticationType as error:
                reason = (
                    f"the server accepts no keys for user {self._target.user}, only {', '.join(error.allowed_types)}"
                )
                raise self._denied(reason, tried, SECOND_FACTOR) from error
            except AgentError as error:
                raise self._denied(str(error), tried) from error
            except paramiko.AuthenticationException as error:
                if time.monotonic() >= self._deadline:
                    raise
                if not transport.is_active():
                    raise self._too_many(tried) from error
                continue
            transport.accepted_key = identity.label
            if missing:
                raise self._denied(
                    f"the server accepted the key and also requires {', '.join(missing)}", tried, SECOND_FACTOR
                )
            return
        is_local_name = self._target.user == getpass.getuser() and " -l " not in self._target.command
        raise self._denied(
            f"permission denied for user {self._target.user}{', your local user name' if is_local_name else ''}", tried
        )

    def _denied(self, reason: str, tried: list[Identity], fix: str | None = None) -> ConnectFailure:
        reason += self._keys(tried)
        if fix:
            return ConnectFailure(self._target.name, "login", reason, self._code(), fix)
        works = "logs in without a prompt; `user` and `identity_file` in the inventory set the user and the key"
        fix = f"check that `{self._target.command}` {works}"
        group = GroupMessage(reason, f"check that `FIRST` {works}", self._target.command)
        return ConnectFailure(self._target.name, "login", reason, self._code(), fix, group)

    def _too_many(self, tried: list[Identity]) -> ConnectFailure:
        reason = f"the server closed the connection{self._keys(tried)}"
        fix = "set the right key with `identity_file`: the server allows fewer attempts than keys (MaxAuthTries)"
        return ConnectFailure(self._target.name, "login", reason, self._code(), fix)

    def _keys(self, tried: list[Identity]) -> str:
        keys = ", ".join(identity.label for identity in tried) or "none"
        skipped = [str(item) for item in self._offer.skipped] + list(self._target.remarks)
        return f" (keys tried: {keys}{'; skipped: ' if skipped else ''}{'; '.join(skipped)})"

    def _code(self) -> str:
        codes = {item.code for item in self._offer.skipped}
        return "ssh-key-permissions" if "ssh-key-permissions" in codes else "ssh-auth-denied"


def _exec(channel: paramiko.Channel, command: bytes, deadline: float) -> None:
    """Channel.exec_command with a time limit. Raises `ChannelRefused` or SSHException."""
    request = paramiko.Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)
    request.add_string(command)
    transport = channel.get_transport()
    transport._send_user_message(request)  # type: ignore[attr-defined]
    channel.event.wait(max(0.0, deadline - time.monotonic()))
    if channel.event_ready:
        return
    if channel.event.is_set() and transport.is_active():
        raise ChannelRefused("the server did not accept the command")
    raise paramiko.SSHException("no answer to the request")


def _failure(
    target: Target, phase: str, transport: Transport | None, error: BaseException, deadline: float
) -> Exception:
    greeting = transport.greeting if transport else ""
    if time.monotonic() >= deadline:
        fix = "check that sshd listens there and that the host is not overloaded"
        if phase == "login":
            fix = "the host is overloaded, or sshd waits for a file server: that of the home, or one of user accounts"
        return ConnectFailure(target.name, phase, "no answer in time", "ssh-unreachable", fix)
    if phase == "greeting" or (phase == "key exchange" and isinstance(error, (EOFError, OSError))):
        return DroppedError(phase, greeting)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        fix = "enable modern algorithms in its sshd_config, or allow them in ssh_config: ddp-orch uses no weak ones"
        return ConnectFailure(target.name, phase, str(error), "unknown", fix)
    return ConnectFailure(target.name, phase, f"the connection was lost: {error}", "ssh-unreachable", "try again")


def _jump_refused(target: Target, refused: ChannelRefused) -> ConnectFailure:
    # The jump host's sshd gives one number for all failed connections; only its text tells them apart.
    text = refused.reason.lower()
    code = "ssh-unreachable"
    if "refused" in text:
        code = "ssh-connection-refused"
    elif "name" in text or "resol" in text:
        code = "ssh-name-unresolved"
    assert target.jump
    reason = f"{target.jump.name} cannot reach {target.hostname} port {target.port}: {refused.reason}"
    fix = f"check the connection from {target.jump.name}"
    group = GroupMessage(f"{target.jump.name} cannot reach port {target.port} there: {refused.reason}", fix)
    return ConnectFailure(target.name, "jump", reason, code, fix, group)
