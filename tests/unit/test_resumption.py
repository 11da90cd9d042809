"""The head's part in bringing output folders to agreement: for how long it waits, and whom it blames."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.gang import gang
from orchestrator.node.gang.gang_events import Agreed, Drain, Elected, Exited, Joined, NotAgreed, StartRequested, Tick
from orchestrator.node.gang.gang_state import Phase
from orchestrator.node.roles import resumption
from orchestrator.runs import registry

TIMEOUT = 60.0


class Leader:
    """Stands in for the process that leads the copies: prints what the test says."""

    def __init__(self, *_: object) -> None:
        self.stdout = 99
        self.lines: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        lines, self.lines = self.lines, []
        return lines

    def kill(self) -> None:
        pass

    def has_ended(self) -> bool:
        return True


class Server:
    """Stands in for the server of the head's output folder."""

    number = 0

    def serve(self, number: int, addresses: list[str]) -> None:
        self.number = number

    def advance(self) -> list[dict[str, Any]]:
        return []

    def pipes(self) -> list[int]:
        return []


class Copying:
    """Two hosts, `a` and `b`, that are to get equal folders before the first attempt, from second 100 on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, source: bool = False) -> None:
        """`source`: with a third host, `c`, which only gives the others its files. It has not joined."""
        self.events: list[object] = []
        self.leaders: list[Leader] = []
        self.told: list[Any] = []  # node and message
        monkeypatch.setattr(resumption, "LineProcess", self._start)
        nodes: list[dict[str, Any]] = [{"host": host, "nproc": 1, "spare": False} for host in "ab"]
        if source:
            nodes.append({"host": "c", "nproc": 1, "spare": True, "source": True})
        state = gang.begin(nodes, max_restarts=1, has_agreement=True)
        for event in (Joined(0, 0.0), Joined(1, 0.0), StartRequested("10.0.0.1", 29500, 0.0)):
            state, _ = gang.step(state, event)
        self.state = state
        self.server = Server()
        spec = {
            "nodes": nodes,
            "node": 0,
            "program": "",
            "resume": "head",
            "shared_output": None,
            "resume_limit": 1 << 30,
            "resume_timeout": TIMEOUT,
        }
        self.said: list[str] = []
        recorder: Any = SimpleNamespace(spec=spec, folder="", key=b"", say=self.said.append)
        server: Any = self.server
        self.resumption = resumption.Resumption(
            recorder, server, lambda: ["10.0.0.1"], lambda *told: self.told.append(told), self.events.append
        )
        self.begin(100.0)

    def _start(self, *_: object) -> Leader:
        self.leaders.append(Leader())
        return self.leaders[-1]

    def begin(self, at: float) -> None:
        """A round begins, and both servers listen."""
        self.resumption.advance(self.state, at)
        for node in (0, 1):
            self.resumption.on_server(node, {"number": self.server.number, "addresses": [], "port": 1, "error": ""})
        self.resumption.advance(self.state, at)

    def hear(self, at: float, **line: Any) -> None:
        self.leaders[-1].lines.append(line)
        self.resumption.on_readable(99, self.state, at)
        self.resumption.advance(self.state, at)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Copying:
    return Copying(monkeypatch)


def test_a_host_that_joins_during_a_round_is_asked_too(copying: Copying) -> None:
    copying.resumption.advance(copying.state._replace(phase=Phase.RUNNING), 101.0)
    copying.told.clear()
    copying.resumption.advance(copying.state, 102.0)
    assert [node for node, _ in copying.told] == [1]  # which has no link yet
    copying.resumption.on_joined(1, 103.0)
    assert copying.told[1:] == [copying.told[0]]


def test_the_folder_of_rank_0_is_the_source_though_its_host_leaves(copying: Copying) -> None:
    nodes = [{"host": host, "nproc": 1, "spare": host == "c"} for host in "abc"]
    state = gang.begin(nodes, 3, 1, 600.0, has_agreement=True, elects=True)
    for event in (*(Joined(number, 0.0) for number in range(3)), StartRequested("10.0.0.1", 29500, 0.0)):
        state, _ = gang.step(state, event)
    state, _ = gang.step(state, Agreed(1, (0, 1), 1.0))
    state, _ = gang.step(state, Drain(0, "ann", 1.0, 2.0))
    for number in (0, 1):
        state, _ = gang.step(state, Exited(number, 1, True, 3.0))
    state, _ = gang.step(state, Elected(1, "10.0.0.2", 50.0))
    copying.resumption.close()
    copying.resumption.advance(state, 60.0)
    current = copying.resumption._round
    assert current and (current.team, current.source, current.nodes) == ((1, 2), 0, (0, 1, 2))

    before = len(copying.leaders)
    for node, port in ((0, None), (1, 1), (2, 1)):
        copying.resumption.advance(state, 61.0)
        assert len(copying.leaders) == before
        fields = {"number": copying.server.number, "addresses": [], "port": port, "error": "no free port"}
        copying.resumption.on_server(node, fields)
    copying.resumption.advance(state, 61.1)
    assert len(copying.leaders) == before + 1  # a refusal is an answer too: nothing more is waited for


def test_copies_may_take_any_time_as_long_as_bytes_arrive(copying: Copying) -> None:
    for minute in range(100):
        copying.hear(100.0 + minute * (TIMEOUT - 1), left={"1": 1000 - minute})
    assert copying.events == []
    copying.hear(10_000.0, done=True, note="")
    assert copying.events == [Agreed(1, (0, 1), 10_000.0)]


def test_a_host_that_receives_nothing_any_more_is_named(copying: Copying) -> None:
    copying.hear(150.0, left={"0": 0, "1": 1000})
    copying.hear(150.0 + TIMEOUT, left={"0": 0, "1": 1000})
    assert copying.events == []
    copying.hear(151.0 + TIMEOUT, left={"0": 0, "1": 1000})
    (event,) = copying.events
    assert isinstance(event, NotAgreed) and event.node == 1
    assert event.why == "b: run.resume: no progress for 60 s (run.resume_timeout)"


def test_what_is_copied_again_and_again_is_no_progress(copying: Copying) -> None:
    at = 100.0
    while not copying.events and at < 1000:
        for left in (1000, 500):
            copying.hear(at, left={"1": left})
        copying.hear(at, failed="b: run.resume: the connection broke", node=1, again=True)
        at += 10
        copying.begin(at)
    (event,) = copying.events
    assert isinstance(event, NotAgreed) and event.node == 1 and at < 100 + TIMEOUT + 20
    assert event.why.startswith("b: run.resume: no progress for 60 s") and event.why.endswith("the connection broke")


def test_a_host_that_only_gives_its_files_is_awaited_and_leaves_when_the_others_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copying = Copying(monkeypatch, source=True)
    assert copying.resumption._round is None and not copying.said
    copying.state, _ = gang.step(copying.state, Joined(2, 101.0))
    copying.begin(101.0)
    assert not copying.leaders  # its server has not told where it listens
    contact = {"number": copying.server.number, "addresses": [], "port": 1, "error": ""}
    copying.resumption.on_server(2, contact)
    copying.resumption.advance(copying.state, 102.0)
    copying.hear(103.0, done=True, note="")
    assert copying.events == [Agreed(1, (0, 1), 103.0)]
    for event in (copying.events[0], Tick(104.0)):
        copying.state, _ = gang.step(copying.state, event)
    assert copying.state.phase is Phase.RUNNING
    for at in (105.0, 106.0):
        copying.resumption.advance(copying.state, at)
        for event in copying.events[1:]:
            copying.state, _ = gang.step(copying.state, event)
    (drain,) = copying.events[1:]
    assert isinstance(drain, Drain) and (drain.node, drain.by) == (2, registry.SOURCE)
    assert copying.state.nodes[2].leaves and copying.state.phase is Phase.RUNNING


def test_the_others_begin_without_a_host_that_only_gives_its_files_if_it_does_not_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copying = Copying(monkeypatch, source=True)
    copying.begin(100.0 + resumption.SOURCE_WINDOW - 1)
    assert copying.resumption._round is None
    copying.begin(100.0 + resumption.SOURCE_WINDOW)
    assert copying.resumption._round is not None and "c did not join" in copying.said[0]
