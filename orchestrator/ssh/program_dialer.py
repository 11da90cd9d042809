"""Connect to the hosts that a program reaches: the system's `ssh`, or a command of the inventory.

Retries a login that sshd dropped. Never tries a refused login again.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ..inventory import via
from ..inventory.container import ENTERED, Container, is_entered
from ..inventory.model import Host, SshOptions
from ..output.terminal import one_line
from .config import login_by_hand
from .openssh import ENVIRONMENT, LOST, batch_config, explain, ssh_argv
from .pipe import ConnectFailure
from .program import NoShell, ProgramConnection
from .quoting import quote

FIRST_RETRY, MAX_RETRY = 0.1, 3.0
"""Seconds: the longest wait before the first retry, and before any."""

_REASON_LENGTH = 300

_ENTER = """
for engine in "$@"; do
  why=$("$engine" container inspect --format "{{.State.Status}}" "$0" 2>&1)
  [ "$why" != running ] || exec "$engine" exec -i "$0" sh
  echo "$engine: container $0: $(echo "$why" | tail -n 1)" >&2
done
exit 1
"""
"""Shell code: the arguments are engines, and $0 is the name of a container."""

_WITHOUT_PLACE = r"env $(env | sed -n 's/^\(\(SLURMD*\|PMI\|PMIX\|OMPI\)_[A-Za-z0-9_]*\)=.*/-u \1/p')"
"""Starts a command without the variables by which Slurm tells a task its place: frameworks would use them."""


class ProgramDialer:
    """Connects from many threads at once. The arguments are those of `Dialer`."""

    def __init__(
        self,
        options: SshOptions,
        config_file: Path | None,
        has_jump: Callable[[Host, float], bool],
        trust_command: str,
        patience: float,
        reaching: Callable[[str, str], None],
    ) -> None:
        """`has_jump`: whether a jump host leads to a host; with a deadline."""
        self._options = options
        self._config_file = config_file
        self._has_jump = has_jump
        self._batch_config: IO[str] | None = None
        self._trust_command = trust_command
        self._patience = patience
        self._reaching = reaching
        self._denied: dict[str, ConnectFailure] = {}
        self._slots: dict[str, threading.Semaphore] = {}
        self._lock = threading.Lock()

    def connect(self, host: Host, deadline: float) -> ProgramConnection:
        """Raises ConnectFailure."""
        if denied := self._denied.get(host.name):
            raise denied  # servers may count another try as an attack and lock the account
        with self._slot(host):
            self._reaching(host.name, "logging in")
            if host.local or via.is_command(host.via):
                return _connect_by_command(host, deadline)
            return self._connect_by_ssh(host, deadline)

    def forget_refusals(self) -> None:
        """Try hosts that refused the login again."""
        self._denied.clear()

    def close(self) -> None:
        if self._batch_config is not None:
            self._batch_config.close()

    def _config(self, host: Host, deadline: float) -> Path | None:
        """The ssh_config to connect with; None: the usual one."""
        if not self._has_jump(host, deadline):
            return self._config_file
        with self._lock:
            if self._batch_config is None:
                self._batch_config = tempfile.NamedTemporaryFile("w", prefix="ddp-orch-ssh-")  # noqa: SIM115  # `close` does
                self._batch_config.write(batch_config(self._config_file))
                self._batch_config.flush()
            return Path(self._batch_config.name)

    @contextlib.contextmanager
    def _slot(self, host: Host) -> Iterator[None]:
        """Limit the simultaneous logins through a jump host of the inventory, as `JumpHosts.slot` does."""
        if host.proxy_jump is None:
            yield
            return
        with self._lock:
            slot = self._slots.setdefault(host.proxy_jump, threading.Semaphore(self._options.jump_parallel))
        self._reaching(host.name, f"waiting for {host.proxy_jump}")
        acquired = slot.acquire(timeout=self._options.connect_timeout / 4)
        try:
            yield
        finally:
            if acquired:
                slot.release()

    def _connect_by_ssh(self, host: Host, deadline: float) -> ProgramConnection:
        longest_wait = FIRST_RETRY
        config = self._config(host, deadline)
        while True:
            limit = min(deadline - time.monotonic(), self._patience)
            argv = ssh_argv(host, self._options.host_keys, limit, config)
            try:
                return _start(host, argv, ENVIRONMENT, LOST, deadline)
            except NoShell as error:
                if error.status != LOST:
                    raise _no_shell(host, error) from error
                failure = explain(host, error.stderr, login_by_hand(host), self._trust_command)
            wait = random.uniform(0, longest_wait)  # noqa: S311  # a random delay is no secret
            if failure.phase == "login":
                self._denied[host.name] = failure
            if failure.code != "ssh-throttled" or time.monotonic() + wait >= deadline:
                raise failure
            time.sleep(wait)
            longest_wait = min(2 * longest_wait, MAX_RETRY)


def _connect_by_command(host: Host, deadline: float) -> ProgramConnection:
    argv = ("sh",) if host.local else (*via.argv_of(host), "sh")
    try:
        return _start(host, argv, {}, None, deadline)
    except NoShell as error:
        raise _no_shell(host, error) from error


def _start(
    host: Host, argv: tuple[str, ...], env: dict[str, str], lost: int | None, deadline: float
) -> ProgramConnection:
    if not shutil.which(argv[0]):
        fix = "install the OpenSSH client" if host.via == via.OPENSSH else "install it, or correct `via`"
        raise ConnectFailure(host.name, "via", f"this machine has no program {argv[0]}", "unknown", fix)
    return ProgramConnection(host.name, argv, env, lost, deadline, second_shell(host))


def second_shell(host: Host) -> str:
    """The command that the first shell becomes, where that is not the one which is wanted."""
    enter = enter_command(host.container) if is_entered(host.container) else ""
    return f"{_WITHOUT_PLACE} {enter or 'sh'}" if via.ends_runs(host.via) and not host.local else enter


def enter_command(container: Container) -> str:
    """The shell command that becomes a shell in a container which is running."""
    engines = ENTERED if container.engine == "auto" else (container.engine,)
    return quote(("sh", "-c", _ENTER, container.enter, *engines))


def _no_shell(host: Host, error: NoShell) -> ConnectFailure:
    if error.late:
        fix = "check that it does not wait for an answer or for a host that is down"
        if host.via == via.OPENSSH:
            fix = "check that sshd listens there and that the host is not overloaded"
        return ConnectFailure(host.name, "via", "no shell answered in time", "ssh-unreachable", fix)
    text = one_line(error.stderr.decode("utf-8", "replace").strip())[-_REASON_LENGTH:]
    command = "sh" if host.local else f"{login_by_hand(host)} sh"
    reason = f"`{command}` ended with exit status {error.status}" + (f": {text}" if text else "")
    fix = "check that this command starts a shell on the host"
    if is_entered(host.container):
        fix = "start that container there, or remove `container.enter`"
    return ConnectFailure(host.name, "via", reason, "unknown", fix)
