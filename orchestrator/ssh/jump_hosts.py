"""Share one connection to each jump host, and limit the logins behind it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

from ..inventory.model import SshOptions
from .config import Target
from .pipe import ConnectFailure

if TYPE_CHECKING:
    from .login import SshConnection

FAILURE_KEPT = 5.0
"""Seconds for which a jump host that could not be reached is not tried again."""


class JumpHosts:
    """The connections to jump hosts. Safe to use from many threads."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self._shared: dict[Target, _SharedConnection] = {}
        self._slots: dict[Target, threading.Semaphore] = {}
        self._lock = threading.Lock()

    def connection(
        self, target: Target, jump: Target, deadline: float, connect: Callable[[Target, float], SshConnection]
    ) -> SshConnection:
        """The connection to a jump host of `target`. The first thread that needs it opens it; the others wait.

        Raises ConnectFailure.
        """
        with self._lock:
            shared = self._shared.get(jump)
            opens = shared is None or not shared.usable()
            if shared is None or opens:
                shared = self._shared[jump] = _SharedConnection()
        future = shared.connection
        if opens:
            try:
                future.set_result(connect(jump, deadline))
            except BaseException as error:  # noqa: BLE001  # the other threads wait for any outcome
                shared.failed_at = time.monotonic()
                future.set_exception(error)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout as error:
            reason = f"no connection to {jump.name} in time"
            raise ConnectFailure(target.name, "jump", reason, "ssh-unreachable", f"try `{jump.command}`") from error
        except ConnectFailure as failure:
            raise failure.of_jump_host(target.name) from failure

    @contextlib.contextmanager
    def slot(self, jump: Target) -> Iterator[None]:
        """Limit the simultaneous logins behind a jump host to `jump_parallel`.

        The limit is soft: hosts that are down keep their slots until they time out, and must not delay the others.
        """
        with self._lock:
            slot = self._slots.setdefault(jump, threading.Semaphore(self._options.jump_parallel))
        acquired = slot.acquire(timeout=self._options.connect_timeout / 4)
        try:
            yield
        finally:
            if acquired:
                slot.release()

    def close(self) -> None:
        """Close the connections to jump hosts, and with them all connections through them."""
        with self._lock:
            all_shared = list(self._shared.values())
            self._shared.clear()
        for shared in all_shared:
            if shared.connection.done() and not shared.connection.exception():
                shared.connection.result().close()


class _SharedConnection:
    """A connection that is pending, open or failed."""

    def __init__(self) -> None:
        self.connection: Future[SshConnection] = Future()
        self.failed_at = 0.0

    def usable(self) -> bool:
        """Whether to wait for it. A failure counts for some seconds, so that queued hosts do not all wait again."""
        if not self.connection.done():
            return True
        if self.connection.exception():
            return time.monotonic() < self.failed_at + FAILURE_KEPT
        return self.connection.result().alive
