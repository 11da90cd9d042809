"""Both sides of the recorders' links: who counts as lost."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.gang.gang_events import End, Order, StartRequested, StopRequested
from orchestrator.node.gang.gang_state import NodePhase
from orchestrator.node.guard.permit import clock
from orchestrator.node.link.contacts import Contact
from orchestrator.node.link.link import Link
from orchestrator.node.roles import head as head_module
from orchestrator.node.roles.follower import WorkerLink
from orchestrator.node.roles.head import HeadLink
from orchestrator.node.roles.transport import Transport

RUN_KEY = bytes(32)
LEASE = 0.05  # s


class Recorder:
    """As much of one as its peers need."""

    def __init__(self, folder: Path, key: bytes, link_port: int = 0, node: int = 1) -> None:
        self.folder = str(folder)
        self.key = key
        self.notify: dict[str, Any] = {}
        self.lines: list[str] = []
        self.reported = {"attempt": 1, "committed": True, "waiting": False, "begun": 0, "stop": None}
        self.commands: list[str] = []
        self.permits: list[float] = []
        nodes = [{"host": f"host-{number}", "nproc": 1} for number in range(2)]
        self.spec = {
            "launcher": {"name": "direct", "argv": [], "worker": [], "env": {}, "ready": "", "scope": "rank"},
            "nodes": nodes,
            "max_restarts": 0,
            "grace": 1.0,
            "min_nodes": 2,
            "epoch": 0.0,
            "stall_timeout": None,
            "interface": "auto",
            "env": {},
            "auto_env": {},
        }
        self.spec |= {
            "lease": LEASE,
            "node": node,
            "link_addresses": ["127.0.0.1"],
            "link_port": link_port,
            "contact": {"addresses": [], "port": None, "sshd": None},
            "run_id": "a-run",
            "name": "a-run",
            "resume": "none",
            "program": "",
        }

    def silence(self) -> dict[str, Any]:
        return {"quiet": 0.0, "frozen": []}

    def command(self, message: dict[str, Any]) -> None:
        self.commands.append(message["do"])

    def permit(self, seconds: float) -> None:
        self.permits.append(seconds)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def obey(self, order: Order, until: float | None = None) -> None:
        """There is no guard."""


@pytest.fixture
def met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HeadLink, Link]]:
    """A head and the link of a node that has joined it; a lease is short."""
    monkeypatch.setattr(head_module, "TICK", 0.0)
    listener = socket.create_server(("127.0.0.1", 0))
    recorder = Recorder(tmp_path, RUN_KEY, node=0)
    head = HeadLink(recorder, Transport(recorder, [listener]))
    node = Link(socket.create_connection(listener.getsockname()), RUN_KEY, 1, 0)
    while not (node.ready and head._nodes):
        handles = [listener.fileno(), *(link.fileno() for link in head.links())]
        for handle in select.select(handles, [], [], 0.01)[0]:
            head.on_readable(handle)
        for link in head.links():
            link.flush()
        node.receive()
        node.flush()
    yield head, node
    node.close()
    listener.close()


def phase(head: HeadLink) -> NodePhase:
    return head._state.nodes[1].phase


def outlast_the_lease() -> None:
    end = time.monotonic() + 2 * LEASE
    while time.monotonic() < end:
        time.sleep(end - time.monotonic())


def test_a_node_that_was_silent_for_a_lease_is_lost(met: tuple[HeadLink, Link]) -> None:
    head, _ = met
    outlast_the_lease()
    head.on_tick()
    assert phase(head) is NodePhase.ABSENT  # before the start: it may come back


def test_a_head_that_was_late_hears_what_has_come_before_it_calls_anybody_lost(met: tuple[HeadLink, Link]) -> None:
    """On a busy host it may have had no processor for longer than a lease, while its nodes went on speaking."""
    head, node = met
    outlast_the_lease()
    node.send({})
    (link,) = head.links()
    assert select.select([link.fileno()], [], [], 10.0)[0]
    head.on_tick()
    assert phase(head) is NodePhase.JOINED


STATUS = {"attempt": 0, "begun": 0, "phase": "prepared", "failures": [], "outcome": None, "start": None, "stop": None}


def say(head: HeadLink, node: Link, message: dict[str, Any]) -> None:
    """Bring a message of the node to its head."""
    node.send(message)
    (link,) = head.links()
    assert select.select([link.fileno()], [], [], 10.0)[0]
    head.on_readable(link.fileno())


@pytest.mark.parametrize(
    "message",
    [
        {"status": {}},
        {"status": None},
        {"status": dict(STATUS, phase="asleep")},
        {"status": dict(STATUS, phase="exited")},
        {"status": dict(STATUS, attempt=True)},
        {"status": dict(STATUS, stop={"by": "ann"})},
        {"status": dict(STATUS, stop={"by": "ann", "grace": float("nan")})},
        {"status": dict(STATUS, failures=[{"what": "no attempt"}])},
        {"status": dict(STATUS, failures={})},
        {"contact": {"addresses": 5}},
        {"clock": 5.0},
        {"clock": 5.0, "unheard": -1.0},
        {"silence": 5},
        {"silence": {"quiet": "long", "frozen": []}},
        {"silence": {"quiet": 0.0, "frozen": ["one"]}},
    ],
)
def test_a_message_that_no_honest_node_sends_closes_its_link(
    met: tuple[HeadLink, Link], message: dict[str, Any]
) -> None:
    head, node = met
    say(head, node, message)
    assert not head.links()
    head.on_tick()


def test_a_node_speaks_for_itself_and_in_one_short_line(met: tuple[HeadLink, Link]) -> None:
    head, node = met
    head._step(StartRequested("127.0.0.1", 29500, head._now()))
    failure = {"rank": 0, "exit_code": 137, "signal": None, "pid": 7, "attempt": 1, "at": 1.0, "host": "host-0"}
    failure.update(node=0, what="rank 0\nddp-orch: attempt 7 on forged" + "!" * 999, said="a\u2028b\r" * 999)
    say(head, node, {"status": dict(STATUS, attempt=1, phase="running", failures=[failure])})
    first = head._state.first_failure
    assert first is not None
    assert (first["host"], first["node"], first["rank"]) == ("host-1", 1, None)
    assert len(first["what"]) == len(first["said"]) == 300
    (line,) = [line for line in head._recorder.lines if "failure" in line]  # type: ignore[attr-defined]
    assert len(line.splitlines()) == 1 and len(line) < 700


@pytest.mark.parametrize("told", [False, True])
def test_the_head_of_an_ended_run_waits_for_a_node_that_may_not_know_the_verdict(
    met: tuple[HeadLink, Link], told: bool
) -> None:
    """Its guard may have been killed, and the next one would wait for a head that has gone."""
    head, node = met
    head._step(StopRequested("ann", 0.0, head._now()))
    assert head._state.verdict is not None
    if told:
        say(head, node, {"told": True})
    node.close()
    (link,) = head.links()
    assert select.select([link.fileno()], [], [], 10.0)[0]
    head.on_readable(link.fileno())
    assert not head.links()
    assert phase(head) is (NodePhase.DISCONNECTED if told else NodePhase.JOINED)


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WorkerLink, Recorder, Link]]:
    """A node that has joined its head, and the head's link; a lease is short."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        recorder = Recorder(tmp_path, RUN_KEY, listener.getsockname()[1])
        follower = WorkerLink(recorder, Transport(recorder, []))
        follower.on_tick()
        head = Link(listener.accept()[0], RUN_KEY, 0)
    while not (head.ready and follower._to_head()[0].ready):
        head.flush()
        head.receive()
        (link,) = follower._to_head()
        if select.select([link.fileno()], [], [], 0.01)[0]:
            follower.on_readable(link.fileno())
    yield follower, recorder, head
    head.close()


def test_a_node_that_joins_says_when_its_status_was_sent(joined: tuple[WorkerLink, Recorder, Link]) -> None:
    """Else an older status, which a cut has held back, would count after it."""
    _, _, head = joined
    received: list[dict[str, Any]] = []
    while not any("status" in message for message in received):
        assert select.select([head.fileno()], [], [], 10.0)[0]
        received += head.receive()
    assert all("clock" in message for message in received if "status" in message)


def test_a_node_that_heard_nothing_of_its_head_for_a_lease_stops(joined: tuple[WorkerLink, Recorder, Link]) -> None:
    follower, recorder, _ = joined
    outlast_the_lease()
    follower.on_tick()
    assert recorder.commands == ["prepared", "end"]


def test_a_node_that_was_late_hears_its_head_before_it_stops(joined: tuple[WorkerLink, Recorder, Link]) -> None:
    follower, recorder, head = joined
    outlast_the_lease()
    head.send({"echo": clock()})
    (link,) = follower._to_head()
    assert select.select([link.fileno()], [], [], 10.0)[0]
    follower.on_tick()
    assert recorder.commands == ["prepared"]


def deliver(follower: WorkerLink, head: Link, message: dict[str, Any]) -> None:
    """Bring a message of the head to its node."""
    head.send(message)
    (link,) = follower._to_head()
    assert select.select([link.fileno()], [], [], 10.0)[0]
    follower.on_readable(link.fileno())


def test_what_the_head_has_received_renews_the_permit_from_when_it_was_sent(
    joined: tuple[WorkerLink, Recorder, Link],
) -> None:
    follower, recorder, head = joined
    follower._lease = 60.0
    recorder.permits.clear()
    deliver(follower, head, {"echo": clock() - 10.0})
    (seconds,) = recorder.permits
    assert 45.0 < seconds <= 50.0


@pytest.mark.parametrize("age", [None, 61.0])
def test_a_message_that_a_cut_has_delayed_renews_nothing(
    joined: tuple[WorkerLink, Recorder, Link], age: float | None
) -> None:
    """It says what the head knew then; since then the head may have given this node up."""
    follower, recorder, head = joined
    follower._lease = 60.0
    recorder.permits.clear()
    deliver(follower, head, {} if age is None else {"echo": clock() - age})
    assert recorder.permits == []


def test_the_head_answers_with_the_time_of_the_node_that_it_has(met: tuple[HeadLink, Link]) -> None:
    head, node = met
    say(head, node, {"clock": 5.0, "unheard": 0.0})
    assert select.select([node.fileno()], [], [], 10.0)[0]
    assert node.receive()[-1]["echo"] == 5.0


def test_a_node_without_its_head_waits_for_it_until_it_is_asked_to_stop(
    joined: tuple[WorkerLink, Recorder, Link],
) -> None:
    follower, recorder, _ = joined
    follower._rejoin_timeout = 600.0
    for stop, commands in ((None, ["prepared"]), ({"by": "ann"}, ["prepared", "end"])):
        recorder.reported["stop"] = stop
        outlast_the_lease()
        follower.on_tick()
        assert recorder.commands == commands


def test_a_node_whose_head_is_not_back_in_time_ends(joined: tuple[WorkerLink, Recorder, Link]) -> None:
    follower, recorder, _ = joined
    follower._rejoin_timeout = LEASE
    outlast_the_lease()
    outlast_the_lease()
    follower.on_tick()
    assert recorder.commands == ["prepared", "end"]


def test_a_node_that_was_lost_has_to_join_again(met: tuple[HeadLink, Link]) -> None:
    """It may be heard on the link that it had, when a cut is over."""
    head, _ = met
    head._log.state = head._state._replace(rejoin_timeout=600.0)
    outlast_the_lease()
    head.on_tick()
    assert not head.links()


def test_a_node_learns_from_the_head_where_the_others_are(joined: tuple[WorkerLink, Recorder, Link]) -> None:
    follower, _, head = joined
    contact = {"addresses": ["10.0.0.2"], "port": 20002, "sshd": ["10.0.0.2", 22]}
    deliver(follower, head, {"contacts": {"0": contact}})
    assert follower._contacts.get(0) == Contact(("10.0.0.2",), 20002, ("10.0.0.2", 22))


def test_the_head_passes_a_contact_on_once(met: tuple[HeadLink, Link]) -> None:
    head, node = met
    contact = {"addresses": ["10.0.0.2"], "port": 20002, "sshd": None}
    say(head, node, {"contact": contact})
    assert set(head._news(1)["contacts"]) == {"0", "1"}
    assert head._news(1) == {}


def test_a_node_that_has_the_verdict_says_so(joined: tuple[WorkerLink, Recorder, Link]) -> None:
    follower, _, head = joined
    deliver(follower, head, {"order": ["End", End({"state": "succeeded"})._asdict()]})
    received: list[dict[str, Any]] = []
    while not any("told" in message for message in received):
        assert select.select([head.fileno()], [], [], 10.0)[0]
        received += head.receive()


@pytest.mark.parametrize("order", [5, [], ["Run"], ["Fly", {}], ["Stop", {"attempt": 1}], ["State", {}], [{}, {}]])
def test_an_order_that_makes_no_sense_closes_the_link(joined: tuple[WorkerLink, Recorder, Link], order: Any) -> None:
    follower, recorder, head = joined
    head.send({"order": order})
    (link,) = follower._to_head()
    assert select.select([link.fileno()], [], [], 10.0)[0]
    follower.on_readable(link.fileno())
    assert not follower._to_head()
    assert recorder.commands == ["prepared"]
