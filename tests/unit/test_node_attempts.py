"""A guard's attempts, without processes: when the guard has to look at them again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.guard.attempts import LONGEST_REGISTRATION, Attempts, PendingStop
from orchestrator.node.ranks import fifos

SPEC: dict[str, Any] = {
    "node": 0,
    "nodes": [{"host": "a", "nproc": 1, "spare": False}],
    "program": "program",
    "setup": [],
    "umask": 0o022,
    "descriptors": 1024,
}


class HangingTree:
    """Needs no look for 5 s until it is stopped, then one after 1 s to send SIGKILL."""

    attempt = 1
    outcome = None
    stopping: str | None = None

    def tick(self) -> float:
        return 1.0 if self.stopping else 5.0

    def members(self) -> list[object]:
        return []

    def ranks(self) -> list[object]:
        return []

    def stop(self, grace: float, why: str) -> None:
        self.stopping = why


class RegisteringTree:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def register(self, line: bytes) -> None:
        self.lines.append(line)


def test_a_stop_without_the_stacks_it_waited_for_is_followed_up_in_time(tmp_path: Path) -> None:
    attempts = Attempts(str(tmp_path), SPEC, {}, [], lambda: 0, lambda: None, lambda: None)
    attempts.tree = HangingTree()  # type: ignore[assignment]
    attempts._pending = PendingStop(pid=0, at=100.0, grace=1.0, why="stalled")
    attempts.advance(now=101.0)
    assert attempts.tree.stopping == "stalled"
    assert attempts.due_at() <= 102.0


def test_fifos_on_a_disk_that_was_mounted_read_only_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(str(tmp_path), SPEC, {}, [], lambda: -1, lambda: None, lambda: None)
    kept = fifos.make(str(tmp_path), 1, ["0"])
    attempts._keepers[1] = dict(kept)

    def refuse(_: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", refuse)
    attempts.close_fifos(2)
    for handle in kept.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def test_a_registration_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "fifo").mkdir()
    attempts = Attempts(str(tmp_path), SPEC, {}, [], lambda: -1, lambda: None, lambda: None)
    attempts.open_register()
    tree = RegisteringTree()
    attempts.tree = tree  # type: ignore[assignment]
    for _ in range(50):
        os.write(attempts.register, b"x" * 4000)
        attempts.read_registrations()
    assert len(attempts._register_buffer) <= LONGEST_REGISTRATION
    os.write(attempts.register, b"\nline of a rank\n")
    attempts.read_registrations()
    assert tree.lines[-1] == b"line of a rank"
    os.close(attempts.register)
