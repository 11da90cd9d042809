"""The process that leads the copies of `run.resume`, with the servers of three hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until

from orchestrator.hosts.node_program import node_program
from orchestrator.node.resume.leader import Leader
from orchestrator.node.roles.output_server import LineProcess
from orchestrator.node.roles.resumption import NO_NODE

KEY = "00" * 32


class Hosts:
    """`node-0`, `node-1` and `node-2`, with their output folders."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "program"
        self._program.write_bytes(node_program().data)
        self.folders = [folder / f"out-{number}" for number in range(3)]
        self.servers: list[LineProcess] = []
        self._contacts = [self._serve(number, root) for number, root in enumerate(self.folders)]

    def _serve(self, number: int, root: Path) -> dict[str, Any]:
        """The contact."""
        root.mkdir()
        given = {"key": KEY, "node": number, "root": str(root), "addresses": ["127.0.0.1"], "memory": None}
        server = LineProcess(str(self._program), "resume-serve", {**given, "ports": [20000, 29999]})
        self.servers.append(server)
        (contact,) = wait_until(lambda: server.read() or [], 30, "the server listens")
        return contact

    def save(self, number: int, text: str, at: float, name: str = "snapshot.pt") -> None:
        path = self.folders[number] / name
        path.write_text(text)
        os.utime(path, (at, at))

    def begin_attempt(self, mode: str, team: list[int], before: int | None, others: tuple[int, ...] = ()) -> str:
        """The note. `before`: where rank 0 ran in the attempt before. The team and `others` answer."""
        nodes = {number: {**self._contacts[number], "host": f"node-{number}"} for number in (*team, *others)}
        rest = {"limit": 1 << 30, "memory": None, "only_ring": False, "source_host": f"node-{before}"}
        given = {"key": KEY, "node": NO_NODE, "mode": mode, "head": team[0], "source": before, "team": team}
        leader = Leader({**given, **rest, "nodes": nodes}, lambda **_: None)
        leader.run()
        return leader.note


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    for server in found.servers:
        server.kill()
        wait_until(server.has_ended, 10, "the server has ended")


@pytest.mark.parametrize("mode", ["head", "newest", "union"])
def test_without_the_host_of_rank_0_nothing_is_said_against_the_script(hosts: Hosts, mode: str) -> None:
    hosts.save(0, "model", 1000.0)
    note = hosts.begin_attempt(mode, [1, 2], before=0)
    assert "node-0, where rank 0 ran," in note and "without a snapshot" in note
    assert "$DDP_ORCH_OUTPUT_DIR" in note and "nothing is copied" not in note
    assert "nothing is copied" in hosts.begin_attempt(mode, [1, 2], before=1)


@pytest.mark.parametrize(("mode", "source"), [("head", "node-2"), ("newest", "node-2"), ("union", "the others")])
def test_the_note_says_whose_files_the_ranks_get_instead(hosts: Hosts, mode: str, source: str) -> None:
    hosts.save(2, "model", 1000.0)
    note = hosts.begin_attempt(mode, [1, 2], before=0)
    assert "node-0, where rank 0 ran," in note and f"files of {source}" in note


@pytest.mark.parametrize("mode", ["newest", "union"])
def test_what_a_lost_host_of_rank_0_had_saved_is_kept_when_it_is_back(hosts: Hosts, mode: str) -> None:
    hosts.begin_attempt(mode, [0, 1, 2], before=None)
    hosts.save(0, "long", 1000.0)
    hosts.begin_attempt(mode, [1, 2], before=0)
    hosts.save(1, "short", 2000.0)
    note = hosts.begin_attempt(mode, [0, 1, 2], before=1)
    assert [(root / "snapshot.pt").read_text() for root in hosts.folders] == ["short"] * 3
    (kept,) = hosts.folders[0].glob(".ddp-orch.kept/*/snapshot.pt")
    assert kept.read_text() == "long"
    assert "node-0: 1 file" in note and kept.parent.name in note


def test_nothing_is_kept_while_the_host_of_rank_0_answers(hosts: Hosts) -> None:
    """Also if it is no longer in the team, and gets the files later."""
    hosts.begin_attempt("newest", [0, 1], before=None)
    for number in (0, 1):
        hosts.save(number, f"by {number}", 1000.0 + number)
    hosts.begin_attempt("newest", [1], before=0, others=(0,))
    hosts.save(1, "longer", 2000.0)
    assert hosts.begin_attempt("newest", [0, 1], before=1) == ""
    assert not list(hosts.folders[0].glob(".ddp-orch.kept"))


def test_a_file_that_an_empty_one_replaces_is_kept_and_the_note_names_it(hosts: Hosts) -> None:
    hosts.save(0, "", 2000.0)
    hosts.save(1, "model", 1000.0)
    note = hosts.begin_attempt("head", [0, 1], before=None)
    assert "node-1: snapshot.pt moved to .ddp-orch.replaced" in note
    for _ in range(2):
        assert (hosts.folders[1] / ".ddp-orch.replaced/snapshot.pt").read_text() == "model"
        assert hosts.begin_attempt("head", [0, 1], before=0) == ""
