"""Fix paramiko's transport: no weak algorithms, a reason for each refused channel, no message after a channel's end.

Knows nothing about users or hosts.
"""

from __future__ import annotations

import threading
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_CLOSE, cMSG_CHANNEL_DATA

from .config import Target

WEAK = {
    "ciphers": {"aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"},
    "kex": {f"diffie-hellman-{group}-sha1" for group in ("group1", "group14", "group-exchange")},
    "keys": {"ssh-rsa"},  # the signature with SHA-1; RSA keys sign with SHA-2
    "macs": {"hmac-sha1", "hmac-md5", "hmac-sha1-96", "hmac-md5-96"},
    "pubkeys": {"ssh-rsa"},
}
"""Algorithms that are never offered, although some versions of paramiko support them."""

CONNECT_FAILED = 2  # SSH_OPEN_CONNECT_FAILED of RFC 4254: the text alone says why


class ChannelRefused(Exception):
    """The server did not open a channel or start a command; `reason` is its own text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Packetizer(paramiko.packet.Packetizer):
    """Keeps what the server sends before its banner, and starts no timer thread (which would outlive the program)."""

    # paramiko hangs if it asks for new keys while a channel ends. With the ciphers used here, OpenSSH asks for new
    # keys itself, after as many bytes.
    REKEY_BYTES = 1 << 36
    REKEY_PACKETS = 1 << 31

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.greeting: list[str] = []

    def readline(self, timeout: float) -> str:
        line: str = super().readline(timeout)
        self.greeting.append(line)
        return line

    def start_handshake(self, timeout: float) -> None:
        """Start no timer: the caller has a deadline, and closes the socket after it."""


class Transport(paramiko.Transport):
    """paramiko's transport that offers no weak algorithm and gives each refused channel its own reason."""

    packetizer: _Packetizer
    accepted_key = ""
    """The name of the key that logged in."""

    def __init__(self, sock: Any, disabled_algorithms: dict[str, list[str]], key_types: frozenset[str]) -> None:
        super().__init__(sock, disabled_algorithms=disabled_algorithms, packetizer_class=_Packetizer)
        self._key_types = key_types
        self._opening = threading.local()
        self._refusals: dict[int, str] = {}

    @property
    def phase(self) -> str:
        if self.is_authenticated():
            return "session"
        if self.initial_kex_done:
            return "login"
        return "key exchange" if self.remote_version else "greeting"

    @property
    def greeting(self) -> str:
        return " ".join(self.packetizer.greeting).strip()[:200]

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Types of the keys on file first, as with OpenSSH. No certificates, because they are not supported."""
        known = {name for kind in self._key_types for name in _signatures(kind)}
        names: tuple[str, ...] = self._filter_algorithm("keys")  # type: ignore[attr-defined]
        return tuple(sorted(names, key=lambda name: name not in known))

    @property
    def preferred_ciphers(self) -> tuple[str, ...]:
        """AES-GCM first: it takes a third less time than paramiko's favourite, CTR with a separate MAC."""
        names: tuple[str, ...] = self._filter_algorithm("ciphers")  # type: ignore[attr-defined]
        return tuple(sorted(names, key=lambda name: "gcm" not in name))

    def open_refusable(self, kind: str, address: tuple[str, int] | None, timeout: float) -> paramiko.Channel:
        """Open a channel. Raises `ChannelRefused`, or SSHException when there is no answer in time or no connection."""
        try:
            channel = self.open_channel(kind, address, ("", 0), timeout=max(0.1, timeout))
            channel.transport = _Gate(self)  # type: ignore[assignment]
            return channel
        except (paramiko.SSHException, EOFError, OSError) as error:
            # The exception may belong to another channel: paramiko keeps one for all that are being opened.
            # A thread that opens its first channel on a lost connection has got no number for it.
            refusal = self._refusals.pop(getattr(self._opening, "channel", -1), None)
            if refusal is None:
                raise
            raise ChannelRefused(refusal) from error

    def _next_channel(self) -> int:
        number: int = super()._next_channel()  # type: ignore[misc]
        self._opening.channel = number
        return number

    def _parse_channel_open_failure(self, m: paramiko.Message) -> None:
        number, reason, text = m.get_int(), m.get_int(), m.get_text()
        if reason != CONNECT_FAILED:
            text = f"{paramiko.common.CONNECTION_FAILED_CODE.get(reason, 'refused').lower()} ({text})"
        self._refusals[number] = text
        m.rewind()
        super()._parse_channel_open_failure(m)  # type: ignore[misc]

    def _log(self, level: int, msg: Any, *args: Any) -> None:
        """Log nothing: formatting the messages takes a noticeable part of a login."""


class _Gate:
    """Stops a channel from sending after its end.

    A paramiko channel creates a message under its lock, but sends it later. By then, another thread or the other end
    may have closed the channel. If data arrives for a closed channel, sshd ends the whole connection; on a jump host,
    that is the connection of all hosts behind it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: paramiko.Message) -> None:
        kind = message.asbytes()[:1]
        with self._lock:
            if self._ended:
                return
            self._ended = kind == cMSG_CHANNEL_CLOSE
            try:
                self._transport._send_user_message(message)  # type: ignore[attr-defined]
            except (EOFError, OSError, paramiko.SSHException):
                self._ended = True
                if kind == cMSG_CHANNEL_DATA:
                    raise  # for other messages, such as CLOSE, an error would only kill one of paramiko's threads


def _signatures(key_type: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if key_type == "ssh-rsa" else (key_type,)


def disabled_algorithms(target: Target) -> dict[str, list[str]]:
    """The algorithms of paramiko that are not offered: weak ones, and those that ssh_config excludes."""
    allowed = dict(target.algorithms)
    supported = {
        kind: getattr(paramiko.Transport, f"_preferred_{kind}")
        for kind in ("kex", "ciphers", "macs", "keys", "pubkeys")
    }
    return {
        kind: [name for name in names if name in WEAK[kind] or name not in allowed.get(kind, names)]
        for kind, names in supported.items()
    }
