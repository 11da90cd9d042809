"""The guard's end of its control socket: what the relay asks while a run is prepared and started. Never blocks."""

import json
import socket
import time
from typing import Any, Dict, List, Optional

UNCOMMITTED_PATIENCE = 45.0  # s that a prepared guard waits for the head's order after its controller has gone


class Control:
    """`start`: what the run was committed with, on the head. `channel` is None once the relay has gone."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel: Optional[socket.socket] = channel
        self.start: Optional[Dict[str, Any]] = None
        self._buffer = b""
        self._closed_at: Optional[float] = None

    def receive(self) -> List[Dict[str, Any]]:
        """What has come, whole messages only. Afterwards `channel` may be None."""
        if self.channel is None:
            return []
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if not data:
            self.channel.close()
            self.channel = None
            self._closed_at = time.monotonic()
        return [json.loads(line) for line in lines]

    def answer(self, message: Dict[str, Any]) -> None:
        if self.channel is not None:
            try:
                self.channel.send(json.dumps(message).encode("ascii") + b"\n")
            except OSError:
                pass  # the relay has gone; its end of file follows

    def patience_ends_at(self) -> float:
        """When a guard that is not committed gives up; never, while its controller is there."""
        return float("inf") if self._closed_at is None else self._closed_at + UNCOMMITTED_PATIENCE
