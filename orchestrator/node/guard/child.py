"""The guard's handle on its recorder: fork it, restart it, exchange whole messages with it. Never blocks.

The recorder is a fork, not a new interpreter: importing its modules again took 80 ms on each host before every launch,
and a restart would read files of a disk that may hang.
"""

import json
import os
import signal
import socket
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional

BACKOFF = 0.5  # s, when a recorder died within a second of its start, or could not be started
LONGEST = 1 << 20  # bytes of a message

Become = Callable[[Dict[str, Any]], NoReturn]
"""Turns a fork of the guard into its recorder: with `folder`, `spec` and `private` of the run, `guard_pid`, and the
descriptors that it keeps, `sockets`: the channel to the guard, then the listeners."""
HANDLED = (signal.SIGCHLD, signal.SIGTERM)
"""The signals that the guard handles."""


class RecorderChild:
    """`due`: when one has to be started (by the monotonic clock), None while one runs."""

    def __init__(self, become: Become) -> None:
        self._become = become
        self.pid = -1
        self.due: Optional[float] = None
        self._started = 0.0
        self._channel: Optional[socket.socket] = None
        self._outbox: Optional[bytes] = None

    def start(self, folder: str, spec: Dict[str, Any], private: Dict[str, Any], listeners: List[socket.socket]) -> bool:
        """Returns False if no process can be started now."""
        self.due = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = [theirs.fileno()] + [listener.fileno() for listener in listeners]
        # until the fork has no handler: it would write the number of a signal into the guard's pipe
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            guard = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become({"folder": folder, "spec": spec, "private": private, "guard_pid": guard, "sockets": kept})
        except OSError:  # the ranks have used up the user's processes, or the memory
            ours.close()
            self.due = time.monotonic() + BACKOFF
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            theirs.close()
        ours.setblocking(False)
        self._close()
        self.pid, self._started, self._channel = pid, time.monotonic(), ours
        return True

    def ended(self) -> None:
        """It has been reaped."""
        self.pid = -1
        self._close()
        soon = time.monotonic() - self._started < 1.0
        self.due = time.monotonic() + (BACKOFF if soon else 0.0)

    def kill(self) -> None:
        if self.pid > 0:
            os.kill(self.pid, signal.SIGKILL)

    @property
    def channel(self) -> Optional[socket.socket]:
        return self._channel

    @property
    def has_unsent_status(self) -> bool:
        return self._outbox is not None

    def send_status(self, status: Dict[str, Any]) -> None:
        """Send the status. It replaces one that is still unsent."""
        self._outbox = json.dumps(status).encode("ascii")
        self.flush()

    def flush(self) -> None:
        if self._channel is None or self._outbox is None:
            return
        try:
            self._channel.send(self._outbox)
        except BlockingIOError:
            return
        except OSError:
            pass  # it died; SIGCHLD is on its way, and the next one gets the whole status
        self._outbox = None

    def receive(self) -> List[Dict[str, Any]]:
        """At most one message; call again when the channel is readable."""
        self.flush()
        try:
            raw = self._channel.recv(LONGEST) if self._channel else b""
        except BlockingIOError:
            return []
        except OSError:
            raw = b""
        if not raw:
            self._close()
            return []
        return [json.loads(raw)]

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
