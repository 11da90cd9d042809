"""Processes of an attempt, as the guard starts them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.node.host.processes import MARK, identify
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


@pytest.mark.parametrize(
    "line",
    [
        "[" * 20000,
        '{"pid": 1e999, "started": 1, "rank": 0}',
        '{"pid": 1, "started": 1, "rank": 1e999}',
        f'{{"pid": {1 << 70}, "started": 1, "rank": 0}}',
        '{"pid": -1, "started": 1, "rank": 0}',
        f'{{"pid": {1 << 70}, "started": 1, "contained": "0"}}',
    ],
)
def test_nothing_that_a_process_registers_ends_the_guard(line: str) -> None:
    tree = Tree(1, Spawner([], [], 0o022, 1024).spawn, lambda: Helpers(-1, -1), lambda _: None)
    tree.register(line.encode())
    assert tree.descriptors() == [] and not tree._contained


def ends_of(agent_by: int, rank_by: int, *, reap_agent: bool) -> list[tuple[Any, Any]]:
    """What a tree reports if torchrun and a rank are ended by these signals before it looks."""
    reported: list[dict[str, Any]] = []
    tree = Tree(1, Spawner([], [], 0o022, 1024).spawn, lambda: Helpers(-1, -1), reported.append)
    description = {"argv": ["sleep", "300"], "cwd": "/", "env": {MARK: "a-run"}}
    description.update(stdout=os.devnull, stderr=os.devnull)
    tree.start([Job("agent", description)])
    (agent,) = tree._roots
    rank = Spawner([], [], 0o022, 1024).spawn(description)
    started = identify(rank)
    assert started is not None
    tree.register(json.dumps({"pid": rank, "started": started.started, "rank": 7}).encode())
    for pid, number in ((agent, agent_by), (rank, rank_by)):
        os.kill(pid, number)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if not reap_agent:
        tree.take_ended()
    status = os.waitpid(agent, 0)[1]
    tree.root_ended(agent, status)
    os.waitpid(rank, 0)
    return [(failure["rank"], failure["signal"]) for failure in reported]


@pytest.mark.parametrize("reap_agent", [False, True])
def test_ranks_that_were_killed_with_their_torchrun_are_not_the_first_to_fail(reap_agent: bool) -> None:
    both = [(None, "SIGKILL"), (7, "SIGKILL")]
    assert ends_of(signal.SIGKILL, signal.SIGKILL, reap_agent=reap_agent) == both


def test_a_rank_that_another_signal_ended_is_first_although_its_torchrun_was_killed_then() -> None:
    ended = ends_of(signal.SIGKILL, signal.SIGHUP, reap_agent=False)
    assert ended == [(7, "SIGHUP"), (None, "SIGKILL")]
