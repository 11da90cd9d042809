"""Connect to the hosts of an inventory over SSH: one connection per host, with verified host keys and a time limit.

`Dialer.connect` returns a `pipe.Connection`. The user's ssh_config is read in `config.py`, TCP connections are made in
`tcp.py`, host keys are checked in `host_keys.py`, `keys.py` has the user's keys, and `jump_hosts.py` shares connections
to jump hosts. `login.py` logs in. It is imported at the first login, because importing fabric and paramiko takes long.
Hosts that are reached by a program (`via`) are left to `program_dialer.py`, and so are those whose ssh_config has what
only the `ssh` program can do, and containers that are entered.
Never asks a question during a login, never retries a rejected key, never forwards the agent.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..inventory.container import is_entered
from ..inventory.model import Host, SshOptions
from ..inventory.via import OPENSSH, PARAMIKO
from .config import IMPORTING, NeedsSshProgram, Resolver, Target, resolve
from .host_keys import HostKeys, KeySeen, Look
from .jump_hosts import JumpHosts
from .keys import KeyRing, Offer
from .pipe import ConnectFailure, Connection, LocalConnection, OtherKey
from .program_dialer import ProgramDialer
from .quoting import quote
from .tcp import DroppedError, dial

if TYPE_CHECKING:
    from .login import SshConnection

__all__ = ["ConnectFailure", "Dialer", "Target", "quote", "resolve"]

FIRST_RETRY, MAX_RETRY = 0.1, 3.0
"""Seconds: the longest wait before the first retry, and before any, after a connection dropped before the login."""

THROTTLED = ("Exceeded MaxStartups", "Not allowed at this time")
"""What sshd sends instead of its banner if it is overloaded, or has banned the client (PerSourcePenalties, 9.8)."""


class Dialer:
    """Connects to hosts from many threads at once. Jump hosts, key files and known_hosts are shared.

    `ask_passphrase` takes a prompt and returns the answer; None without a terminal. `config_file` replaces the
    user's and the system's ssh_config. `reaching` is called with each phase of a connection, and with "" at its end.
    `patience`: how many seconds of the `connect_timeout` a host gets to accept the TCP connection. `trust_command` is
    the command that accepts host keys.
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
        self._jump_hosts = JumpHosts(options)
        self._programs = ProgramDialer(options, config_file, self._resolver.has_jump, trust_command, patience, reaching)
        self._denied: dict[Target, ConnectFailure] = {}
        self._other_keys: dict[str, OtherKey] = {}
        self._reported_keys: set[str] = set()
        self._lock = threading.Lock()

    def prepare(self, hosts: Iterable[Host]) -> None:
        """Read the ssh_config of many hosts and ask for the pass phrases of their keys, before connecting to them.

        Raises no failure of a host: `connect` does.
        """
        deadline = time.monotonic() + self._options.connect_timeout
        targets: list[Target] = []

        def read(host: Host) -> None:
            with contextlib.suppress(ConnectFailure):
                targets.append(self._resolver.resolve(host, deadline))

        # `ssh -G` only computes. Started all at once, from the threads of the logins, they take 20 % longer in total.
        with ThreadPoolExecutor(2 * (os.cpu_count() or 1), thread_name_prefix="ssh-config") as pool:
            list(pool.map(read, (host for host in hosts if host.via == PARAMIKO and not host.local)))
        self._keys.unlock(_with_jumps(targets))

    def connect(self, host: Host) -> Connection:
        """Log in, within `connect_timeout` in total. Raises ConnectFailure."""
        if host.local and not is_entered(host.container):
            return LocalConnection()
        deadline = time.monotonic() + self._options.connect_timeout
        try:
            if host.via != PARAMIKO:
                return self._programs.connect(host, deadline)
            if is_entered(host.container):
                return self._programs.connect(replace(host, via=OPENSSH), deadline)
            try:
                target = self._resolver.resolve(host, deadline)
            except NeedsSshProgram:
                if not shutil.which("ssh"):
                    raise
                return self._programs.connect(replace(host, via=OPENSSH), deadline)
            return self._connect(target, deadline)
        finally:
            self._reaching(host.name, "")

    def forget_refusals(self) -> None:
        """Try hosts that refused the login again, after a key has been installed there."""
        self._denied.clear()
        self._programs.forget_refusals()

    def chain(self, host: Host) -> tuple[Target, ...]:
        """The jump hosts of a host in their order, then the host. Raises ConnectFailure."""
        step: Target | None = self._resolver.resolve(host, time.monotonic() + self._options.connect_timeout)
        targets = []
        while step:
            targets.append(step)
            step = step.jump
        return tuple(reversed(targets))

    def look(self, target: Target) -> bytes:
        """The host key of a host. Does not log in, except to its jump hosts, whose keys must be known.

        Raises ConnectFailure.
        """
        deadline = time.monotonic() + self._options.connect_timeout
        try:
            self._reach(target, deadline, Look(self.host_keys)).close()
        except KeySeen as seen:
            return seen.key
        raise AssertionError("a look does not log in")

    def close(self) -> None:
        """Close the connections to jump hosts, all connections through them, and the connection to the agent."""
        self._jump_hosts.close()
        self._programs.close()
        self._keys.close()

    def _connect(self, target: Target, deadline: float) -> SshConnection:
        if denied := self._denied.get(target):
            raise denied  # servers may count another try as an attack and lock the account
        self._check_named_key(target)
        return self._reach(target, deadline, self.host_keys)

    def _reach(self, target: Target, deadline: float, trust: HostKeys | Look) -> SshConnection:
        if not target.jump:
            return self._login_with_retries(target, None, deadline, trust)
        self._reaching(target.name, f"waiting for {target.jump.name}")
        jump = self._jump_hosts.connection(target, target.jump, deadline, self._connect)
        with self._jump_hosts.slot(target.jump):
            return self._login_with_retries(target, jump, deadline, trust)

    def _login_with_retries(
        self, target: Target, jump: SshConnection | None, deadline: float, trust: HostKeys | Look
    ) -> SshConnection:
        """Log in. Retry after a random wait when sshd drops the connection before the authentication."""
        longest_wait = FIRST_RETRY
        tries = 1
        while True:
            try:
                self._reaching(target.name, "connecting")
                link = jump or dial(target, min(deadline, time.monotonic() + self._patience))
                self._reaching(target.name, "logging in")
                with IMPORTING:  # after dialling, so that the host prepares its answer meanwhile
                    from .login import login

                offer = Offer((), ()) if isinstance(trust, Look) else self._keys.offer(target)
                session = login(target, link, trust, offer, deadline)
                self._note_other_key(target, session)
                return session
            except DroppedError as dropped:
                throttled = dropped.greeting.startswith(THROTTLED)
                wait = random.uniform(0, longest_wait)  # noqa: S311  # a random delay is no secret
                if (dropped.greeting and not throttled) or time.monotonic() + wait >= deadline:
                    raise _dropped(target, dropped, tries) from dropped
            except ConnectFailure as failure:
                if failure.phase == "login" and failure.code != "ssh-unreachable":
                    self._denied[target] = failure
                raise
            time.sleep(wait)
            longest_wait = min(2 * longest_wait, MAX_RETRY)
            tries += 1

    def _note_other_key(self, target: Target, session: SshConnection) -> None:
        named = target.identity_file
        if named and session.accepted_key not in (str(named), f"{named}-cert.pub"):
            self._other_keys[target.name] = OtherKey(str(named), session.accepted_key)

    def take_other_keys(self) -> dict[str, OtherKey]:
        """Hosts that refused the key set in the inventory and accepted another one. Each is returned once."""
        with self._lock:
            taken = {name: key for name, key in self._other_keys.items() if name not in self._reported_keys}
            self._reported_keys |= taken.keys()
        return taken

    def _check_named_key(self, target: Target) -> None:
        """Raise ConnectFailure if the key set in the inventory cannot be used, before anything is sent."""
        if not target.identity_file:
            return
        for skipped in self._keys.offer(target).skipped:
            if skipped.path == target.identity_file:
                fix = "fix it, or set another key with `identity_file`"
                raise ConnectFailure(target.name, "key", str(skipped), skipped.code, fix)


def _with_jumps(targets: Iterable[Target]) -> list[Target]:
    chained: dict[Target, None] = {}
    for target in targets:
        step: Target | None = target
        while step and step not in chained:
            chained[step] = None
            step = step.jump
    return list(chained)


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
