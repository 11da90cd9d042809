"""The guard's handle on its recorder: start it, restart it, exchange whole messages with it. Never blocks."""

import json
import os
import signal
import socket
import time
from typing import Any, Dict, List, Optional

from ..ranks.job import in_memory

BACKOFF = 0.5  # s, when a recorder died within a second of its start, or could not be started
LONGEST = 1 << 20  # bytes of a message


class RecorderChild:
    """`due`: when one has to be started (by the monotonic clock), None while one runs."""

    def __init__(self) -> None:
        self.pid = -1
        self.due: Optional[float] = None
        self._started = 0.0
        self._channel: Optional[socket.socket] = None
        self._outbox: Optional[bytes] = None

    def start(
        self,
        argv: List[str],
        folder: str,
        spec: Dict[str, Any],
        private: Dict[str, Any],
        listeners: List[socket.socket],
    ) -> bool:
        """`argv`: of its interpreter. Returns False if no process can be started now."""
        self.due = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inherited = [theirs.fileno()] + [listener.fileno() for listener in listeners]
        given = {"folder": folder, "spec": spec, "private": private, "guard_pid": os.getpid(), "sockets": inherited}
        stdin = -1
        try:
            stdin = in_memory(json.dumps(given).encode("ascii"))
            for handle in inherited:
                os.set_inheritable(handle, True)
            pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0)])
        except OSError:  # the ranks have used up the user's processes, or the memory
            ours.close()
            self.due = time.monotonic() + BACKOFF
            return False
        finally:
            for listener in listeners:
                listener.set_inheritable(False)
            theirs.close()
            if stdin >= 0:
                os.close(stdin)
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
