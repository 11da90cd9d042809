"""A relay of a few lines: what it answers is up to the test."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.answers.decode import decode
from orchestrator.answers.runs import Part
from orchestrator.inventory.model import Host
from orchestrator.node.serve import wire

A_RUN: dict[str, Any] = {
    "run_id": "20260101-000000-abcd",
    "name": "mine",
    "state": "running",
    "attempt": 1,
    "started_at": "2026-01-01T00:00:00.000000Z",
    "ended_at": None,
    "by": "ann@laptop",
    "script": "train.py",
    "node": 0,
    "host": "a",
    "hosts": ["a", "b"],
    "nprocs": [1, 1],
    "team": 2,
    "node_rank": 0,
    "first_rank": 0,
    "nproc": 1,
    "ranks": 2,
    "exit_code": None,
    "signal": None,
    "pid": 4711,
    "grace": 30.0,
}
"""As an honest host lists it."""

A_FAILURE = {"host": "a", "node": 0, "rank": 0, "what": "rank 0: exit code 3", "at": 1.0}
"""As the verdict on a run has the first one."""


def part_of(**told: Any) -> Part:
    """What a host says of a run that is `A_RUN` but for this. `node` may be one that no host may claim."""
    node = told.get("node", A_RUN["node"])
    return replace(decode(Part, {**A_RUN, **told, "node": max(0, node)}, "run"), node=node)


HELLO = {"codes": [], "boot_id": "b", "machine_id": "m", "state_inode": [1, 2]}

Answer = Callable[["Relay", dict[str, Any]], None]


class Relay:
    """A pipe to something that speaks our protocol: `answer` gets every request."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._out: queue.Queue[bytes] = queue.Queue()
        self._decoder = wire.Decoder()
        self.pings = 0
        self.closed = threading.Event()
        self._out.put(b"\nNONCE have\n")
        self.say(wire.HELLO, HELLO)

    def say(self, kind: int, header: dict[str, Any], payload: bytes = b"") -> None:
        self._out.put(wire.encode(wire.Frame(kind, header, payload)))

    def result(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        self.say(wire.RESULT, {"id": request["id"], "result": result})

    def data(self, request: dict[str, Any], text: bytes) -> None:
        header = {"id": request["id"], "streams": ["1.0.out"], "parts": [[0, 0, len(text), 1]]}
        self.say(wire.DATA, header, text)

    def cut(self) -> None:
        self._out.put(b"")

    # what a pipe and a connection have

    def open(self, command: str, timeout: float) -> Relay:
        return self

    def recv(self, size: int, timeout: float | None) -> bytes:
        try:
            return self._out.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None

    def send(self, data: bytes) -> None:
        if self.closed.is_set():
            raise BrokenPipeError
        for frame in self._decoder.feed(data):
            if frame.kind == wire.PING:
                self.pings += 1
                self.say(wire.PONG, {})
            elif frame.kind == wire.REQUEST and frame.header["op"] == "clock":
                self.result(frame.header, {"clock": time.time()})
            elif frame.kind == wire.REQUEST:
                self._answer(self, frame.header)
            elif frame.kind == wire.BYE:
                self.say(wire.BYE, {})

    def close_write(self) -> None:
        pass

    def stderr(self) -> bytes:
        return b""

    def listen_to_stderr(self, take: Callable[[bytes], None]) -> None:
        pass

    def exit_status(self, timeout: float) -> int | None:
        return None

    def close(self) -> None:
        self.closed.set()
        self.cut()


class Dialer:
    """Gives a relay to each host, as often as it is asked for one."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers
        self.dialled: list[str] = []

    def take_other_keys(self) -> dict[str, Any]:
        return {}

    def connect(self, host: Host) -> Relay:
        self.dialled.append(host.name)
        return Relay(self._answers[host.name])

    def close(self) -> None:
        pass
