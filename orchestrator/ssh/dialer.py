"""Reach the hosts of an inventory over SSH: one connection a host, host keys verified, all within a time limit.

`Dialer.connect` gives a `transport.Connection`. Where a host is says the user's ssh_config (`ssh_config.py`), how to
get there `ssh_dial.py`, who it is known_hosts (`ssh_host_keys.py`), who we are `ssh_keys.py`. The login itself is
`ssh_session.py`: that one, and fabric and paramiko below it, are imported at the first login, as the import takes
longer. Never asks a question during a login, never tries a rejected key again, never forwards the agent.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING

from ..inventory.model import Host, SshOptions
from .config import IMPORTING, Resolver, Target, resolve
from .host_keys import HostKeys, KeySeen, Look
from .keys import KeyRing, Offer
from .pipe import ConnectFailure, Connection, LocalConnection, OtherKey
from .tcp import DroppedError, dial

if TYPE_CHECKING:
    from .login import SshConnection

__all__ = ["ConnectFailure", "Dialer", "Target", "quote", "resolve"]

RETRY_FIRST, RETRY_MOST = 0.1, 3.0
"""Seconds: the longest wait before the first, and before any, new try of a connection that was dropped before login."""

JUMP_FAILURE_KEPT = 5.0
"""Seconds for which a jump host that could not be reached is not tried again."""

THROTTLED = ("Exceeded MaxStartups", "Not allowed at this time")
"""What sshd says instead of its banner when it takes no more: the second one is PerSourcePenalties (OpenSSH 9.8)."""


class Dialer:
    """Connects to hosts, from many threads at once. Shares what hosts share: jump hosts, key files, known_hosts.

    `ask_passphrase` gets a prompt and gives the answer; None when there is no terminal. `config_file` replaces the
    user's and the system's ssh_config. `reaching` hears what the way to a host has come to; "" at its end. `patience`:
    seconds for a host to accept the TCP connection, of the `connect_timeout` for the whole login.
    `trust_command` is what a person types to accept host keys.
    """

    def __init__(
        self,
        options: SshOptions,
        *,
        ask_passphrase: Callable[[str], str] | None = None,
        config_file: Path | None = None,
        agent_socket: str | None = os.environ.get("SSH_AUTH_SOCK"),
        reaching: Callable[[str, str], None] = lambda host, how: None,
        trust_command: str = "ddp-orch trust",
        patience: float = math.inf,
    ) -> None:
        self._options = options
        self._reaching = reaching
        self._patience = patience
        self._resolver = Resolver(config_file, agent_socket)
        self._keys = KeyRing(ask_passphrase)
        self.host_keys = HostKeys(options.host_keys == "accept-new", trust_command)
        self._jumps: dict[Target, _SharedJump] = {}
        self._slots: dict[Target, threading.Semaphore] = {}
        self._denied: dict[Target, ConnectFailure] = {}
        self._other_keys: dict[str, OtherKey] = {}
        self._told_keys: set[str] = set()
        self._lock = threading.Lock()

    def prepare(self, hosts: Iterable[Host]) -> None:
        """Before connecting to many hosts: read their ssh_config, and ask for the pass phrases that their keys need.

        Failures are not raised here: `connect` will say them of the host that they concern.
        """
        deadline = time.monotonic() + self._options.connect_timeout
        targets: list[Target] = []

        def read(host: Host) -> None:
            with contextlib.suppress(ConnectFailure):
                targets.append(self._resolver.resolve(host, deadline))

        # `ssh -G` is all computing. Many at once, from the threads of the logins, take a fifth longer in all.
        with ThreadPoolExecutor(2 * (os.cpu_count() or 1), thread_name_prefix="ssh-config") as pool:
            list(pool.map(read, (host for host in hosts if not host.local)))
        self._keys.unlock(_with_jumps(targets))

    def connect(self, host: Host) -> Connection:
        """Log in, within `connect_timeout` in total. Raises ConnectFailure."""
        if host.local:
            return LocalConnection()
        deadline = time.monotonic() + self._options.connect_timeout
        try:
            return self._connect(self._resolver.resolve(host, deadline), deadline)
        finally:
            self._reaching(host.name, "")

    def forget_refusals(self) -> None:
        """Hosts that refused the login are tried again: a key has been installed there."""
        self._denied.clear()

    def chain(self, host: Host) -> tuple[Target, ...]:
        """The way to a host: its jump hosts in their order, then the host. Raises ConnectFailure."""
        step: Target | None = self._resolver.resolve(host, time.monotonic() + self._options.connect_timeout)
        way = []
        while step:
            way.append(step)
            step = step.jump
        return tuple(reversed(way))

    def look(self, target: Target) -> bytes:
        """The key that a host has proved to hold. Ends before any login but those to its jump hosts, whose keys must be
        known. Raises ConnectFailure."""
        deadline = time.monotonic() + self._options.connect_timeout
        try:
            self._reach(target, deadline, Look(self.host_keys)).close()
        except KeySeen as seen:
            return seen.key
        raise AssertionError("a look does not log in")

    def close(self) -> None:
        """Close the jump hosts' connections, and so all that go through them, and the one to the agent."""
        with self._lock:
            jumps = list(self._jumps.values())
            self._jumps.clear()
        for shared in jumps:
            if shared.session.done() and not shared.session.exception():
                shared.session.result().close()
        self._keys.close()

    def _connect(self, target: Target, deadline: float) -> SshConnection:
        if denied := self._denied.get(target):
            raise denied  # a second try counts as an attack, and locks accounts
        self._check_named_key(target)
        return self._reach(target, deadline, self.host_keys)

    def _reach(self, target: Target, deadline: float, trust: HostKeys | Look) -> SshConnection:
        if not target.jump:
            return self._persist(target, None, deadline, trust)
        self._reaching(target.name, f"waiting for {target.jump.name}")
        jump = self._jump(target, target.jump, deadline)
        with self._slot(target.jump):
            return self._persist(target, jump, deadline, trust)

    def _persist(
        self, target: Target, jump: SshConnection | None, deadline: float, trust: HostKeys | Look
    ) -> SshConnection:
        """Log in; again, after a random wait, when sshd drops the connection before it asked who we are."""
        most = RETRY_FIRST
        tries = 1
        while True:
            try:
                self._reaching(target.name, "connecting")
                link = jump or dial(target, min(deadline, time.monotonic() + self._patience))
                self._reaching(target.name, "logging in")
                with IMPORTING:  # after dialling: the hosts get to work meanwhile
                    from .login import login

                offer = Offer((), ()) if isinstance(trust, Look) else self._keys.offer(target)
                session = login(target, link, trust, offer, deadline)
                self._note_other_key(target, session)
                return session
            except DroppedError as dropped:
                throttled = dropped.greeting.startswith(THROTTLED)
                wait = random.uniform(0, most)  # noqa: S311  # no secret, only a spread
                if (dropped.greeting and not throttled) or time.monotonic() + wait >= deadline:
                    raise _dropped(target, dropped, tries) from dropped
            except ConnectFailure as failure:
                if failure.phase == "login" and failure.code != "ssh-unreachable":
                    self._denied[target] = failure
                raise
            time.sleep(wait)
            most = min(2 * most, RETRY_MOST)
            tries += 1

    def _jump(self, target: Target, jump: Target, deadline: float) -> SshConnection:
        """The one connection to a jump host: the first who needs it makes it, the others wait."""
        with self._lock:
            shared = self._jumps.get(jump)
            mine = shared is None or not shared.usable()
            if shared is None or mine:
                shared = self._jumps[jump] = _SharedJump()
        future = shared.session
        if mine:
            try:
                future.set_result(self._connect(jump, deadline))
            except BaseException as error:  # noqa: BLE001  # whatever it is, the others wait for it
                shared.failed_at = time.monotonic()
                future.set_exception(error)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout as error:
            reason = f"no connection to {jump.name} in time"
            raise ConnectFailure(target.name, "jump", reason, "ssh-unreachable", f"try `{jump.command}`") from error
        except ConnectFailure as failure:
            phase = f"jump host {jump.name}: {failure.phase}"
            raise ConnectFailure(
                target.name, phase, failure.reason, failure.code, failure.fix, failure.common
            ) from failure

    @contextlib.contextmanager
    def _slot(self, jump: Target) -> Iterator[None]:
        """Not more than `jump_parallel` logins at once behind a jump host. Not a promise: hosts that are down, and keep
        their slots until their time is over, must not take the time of the others."""
        with self._lock:
            slot = self._slots.setdefault(jump, threading.Semaphore(self._options.jump_parallel))
        taken = slot.acquire(timeout=self._options.connect_timeout / 4)
        try:
            yield
        finally:
            if taken:
                slot.release()

    def _note_other_key(self, target: Target, session: SshConnection) -> None:
        named = target.identity_file
        if named and session.accepted_key not in (str(named), f"{named}-cert.pub"):
            self._other_keys[target.name] = OtherKey(str(named), session.accepted_key)

    def take_other_keys(self) -> dict[str, OtherKey]:
        """Hosts that refused the key which the inventory names, and accepted another one: each is told once."""
        with self._lock:
            taken = {name: key for name, key in self._other_keys.items() if name not in self._told_keys}
            self._told_keys |= taken.keys()
        return taken

    def _check_named_key(self, target: Target) -> None:
        """A key that the inventory names must be usable: said before anything is tried."""
        if not target.identity_file:
            return
        for skipped in self._keys.offer(target).skipped:
            if skipped.path == target.identity_file:
                fix = "fix it, or set another key with `identity_file`"
                raise ConnectFailure(target.name, "key", str(skipped), skipped.code, fix)


class _SharedJump:
    """The connection to a jump host, being made, made or failed."""

    def __init__(self) -> None:
        self.session: Future[SshConnection] = Future()
        self.failed_at = 0.0

    def usable(self) -> bool:
        """Worth waiting for. So is a failure for a moment: hosts that had to queue shall not wait all over again."""
        if not self.session.done():
            return True
        if self.session.exception():
            return time.monotonic() < self.failed_at + JUMP_FAILURE_KEPT
        return self.session.result().alive


def quote(argv: Sequence[str]) -> str:
    """One command line for any login shell (sh, bash, zsh, fish, csh) that gives a program exactly these arguments.

    Backslashes, quotes and `!` stand outside of quotes, where all of them agree on `\\`. A newline in an argument is
    beyond csh, and NUL beyond every shell (ValueError).
    """
    return " ".join(_quote(argument) for argument in argv)


def _quote(argument: str) -> str:
    if "\0" in argument:
        raise ValueError("an argument cannot contain NUL")
    if re.fullmatch(r"[A-Za-z0-9_./:-]+", argument):
        return argument
    parts = re.findall(r"[\\'!]|[^\\'!]+", argument)
    return "".join(f"\\{part}" if part in "\\'!" else f"'{part}'" for part in parts) or "''"


def _with_jumps(targets: Iterable[Target]) -> list[Target]:
    found: dict[Target, None] = {}
    for target in targets:
        step: Target | None = target
        while step and step not in found:
            found[step] = None
            step = step.jump
    return list(found)


def _dropped(target: Target, dropped: DroppedError, tries: int) -> ConnectFailure:
    greeting = dropped.greeting
    if greeting and not greeting.startswith(THROTTLED):
        fix = f"check that sshd listens on port {target.port}"
        reason = f"not an SSH server: it sent {greeting!r}"
        return ConnectFailure(target.name, dropped.phase, reason, "ssh-unreachable", fix)
    banner = f", banner {greeting!r}" if greeting else ""
    attempts = "1 attempt" if tries == 1 else f"{tries} attempts"
    reason = f"the server closed the connection before the login ({attempts}{banner})"
    fix = "raise MaxStartups in its sshd_config, lower ssh.parallel, or check for a ban (fail2ban, hosts.deny)"
    if greeting.startswith(THROTTLED[1]):
        fix = "wait a few minutes: the server has banned this address for a while (PerSourcePenalties)"
    if target.proxy_command:
        fix = f"test the ProxyCommand by hand: {target.proxy_command}"
    return ConnectFailure(target.name, dropped.phase, reason, "ssh-throttled", fix)
