"""Processes of an attempt, as the guard starts them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator.node.host.processes import MARK
from orchestrator.node.ranks.launch import Job
from orchestrator.node.ranks.spawner import Spawner
from orchestrator.node.ranks.tree import Helpers, Tree


@pytest.fixture
def wakeup() -> Iterator[int]:
    """A descriptor from which one byte comes for each SIGTERM to this process."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    descriptor = signal.set_wakeup_fd(writer)
    yield reader
    signal.set_wakeup_fd(descriptor)
    signal.signal(signal.SIGTERM, before)
    os.close(reader)
    os.close(writer)


def test_a_signal_to_a_process_that_was_just_forked_does_not_reach_the_guard(
    wakeup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = os.fork

    def fork_and_signal() -> int:
        pid = fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr(os, "fork", fork_and_signal)
    tree = Tree(1, Spawner([], [], 0o022, 1024).spawn, lambda: Helpers(-1, -1), lambda _: None)
    description = {"argv": ["true"], "cwd": "/", "env": {MARK: "a-run"}, "stdout": os.devnull, "stderr": os.devnull}
    tree.start([Job("agent", description)])
    (pid,) = tree._roots
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
    with pytest.raises(BlockingIOError):
        os.read(wakeup, 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
