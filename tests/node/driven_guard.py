"""A real guard with real ranks, whose recorder does what the test says.

The node program gets another recorder.py, which passes everything between the guard and the test.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.hosts.node_program import SOURCES, NodeProgram, node_program
from orchestrator.node.gang import gang_events
from orchestrator.node.guard.permit import clock

RECORDER = """
import hashlib, os, select, socket

class Recorder:
    def __init__(self, folder, spec, private, guard, guard_pid, cluster_link):
        state = os.path.dirname(os.path.dirname(os.path.dirname(folder)))
        self._guard = guard
        self._test = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._test.connect("\\0" + hashlib.sha256(state.encode()).hexdigest())

    def run(self):
        while True:
            for source in select.select([self._guard, self._test], [], [])[0]:
                data = source.recv(1 << 20)
                if not data:
                    os._exit(0)
                (self._test if source is self._guard else self._guard).send(data)
"""


def driven_program(folder: Path) -> NodeProgram:
    """Made in `folder`, which must not exist."""
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "recorder" / "recorder.py").write_text(RECORDER)
    return node_program(folder)


class Driver:
    """The test's end of the guard's channel. Make it before the run is prepared, for the state folder of the host."""

    def __init__(self, state: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + hashlib.sha256(os.fsencode(state)).hexdigest())
        self._listener.listen()
        self._channel = self._listener
        self.statuses: list[dict[str, Any]] = []

    def accept(self) -> None:
        self._listener.settimeout(20.0)
        self._channel, _ = self._listener.accept()
        self.send({"do": "prepared", "ready": {}})

    def send(self, message: dict[str, Any]) -> None:
        self._channel.send(json.dumps(message).encode("ascii"))

    def run(self, attempt: int) -> None:
        order = gang_events.Run(attempt, 0, 1, 0, 1, "127.0.0.1", 29500)
        self.send({"do": "run", "order": order._asdict(), "until": None})

    def stop(self, attempt: int, grace: float = 0.0) -> None:
        self.send(dict(gang_events.Stop(attempt, grace, "the test", stacks=False)._asdict(), do="stop"))

    def permit(self, seconds: float, ago: float = 0.0) -> None:
        self.send({"do": "permit", "at": clock() - ago, "seconds": seconds})

    def end(self) -> None:
        self.send({"do": "end", "verdict": {"state": "killed", "first_failure": None, "stopped_by": "the test"}})
        self.wait_for(lambda status: bool(status["drain"]))
        self.close()

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 20.0) -> dict[str, Any]:
        """The next status that meets the condition."""
        while select.select([self._channel], [], [], timeout)[0]:
            status: dict[str, Any] = json.loads(self._channel.recv(1 << 20))
            self.statuses.append(status)
            if condition(status):
                return status
        raise AssertionError(f"no such status; the last ones: {self.statuses[-3:]}")

    def close(self) -> None:
        self._channel.close()
        self._listener.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
