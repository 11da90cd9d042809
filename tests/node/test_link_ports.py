"""The link ports of all nodes: open to the nodes of the run, closed to strangers, known to every node."""

from __future__ import annotations

import json
import pickle
import select
import socket
import time

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs

from orchestrator.node.link import acceptor as acceptor_module
from orchestrator.node.link import messages
from orchestrator.node.link.acceptor import Acceptor
from orchestrator.node.link.contacts import Contact, Contacts
from orchestrator.node.link.link import Link, LinkClosed, dial
from orchestrator.node.serve import link_port

WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
RUN_KEY = bytes(range(32))


def contact(run: Run, node: int) -> Contact:
    spec = run.record("spec.json", node)
    assert spec is not None
    return messages.contact(json.loads(json.dumps(spec["contact"])))


def shake_hands(link: Link) -> bool:
    """Whether the other side accepts us."""

    def finished() -> bool:
        select.select([link.fileno()], [], [], 0.1)
        link.receive()
        return link.ready

    try:
        return bool(wait_until(finished, 10.0, "the handshake ends"))
    except LinkClosed:
        return False
    finally:
        link.close()


def test_every_node_accepts_the_nodes_of_its_run_and_nobody_else(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1, 1))
    for node in (1, 2):
        run.wait_for("ready", f"1.{node}.out", node)
        (address,), port, _ = contact(run, node)
        assert port is not None
        assert shake_hands(dial(address, port, run.key, 3 - node, dialled=node))
        assert shake_hands(dial(address, port, run.key, 0, dialled=node))
        assert not shake_hands(dial(address, port, bytes(32), 0, dialled=node))
        assert not shake_hands(dial(address, port, run.key, 0, dialled=3 - node))
    run.stop(grace=0.0)
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["killed"] * 3


def test_the_link_port_of_a_node_is_among_those_that_kill_finds(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1))
    run.wait_for("ready", "1.1.out", 1)
    assert contact(run, 1).port in run.listed(1)["ports"]
    run.stop(grace=0.0)
    run.wait_over()


def test_a_run_works_without_a_free_port_for_the_link_of_a_node(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        spec = {"cluster_address": "127.0.0.1", "interface": "auto", "ports": [port, port]}
        assert link_port.listen(spec, link_port.addresses(spec, "127.0.0.1")) == []
    assert link_port.contact([], ["10.0.0.2"]) == {"addresses": ["10.0.0.2"], "port": None, "sshd": None}


@pytest.mark.parametrize(
    ("variable", "sshd"),
    [("10.0.0.1 50000 10.0.0.2 2222", ("10.0.0.2", 2222)), ("", None), ("10.0.0.1 50000", None), ("a b c d", None)],
)
def test_the_address_of_sshd_comes_from_ssh(monkeypatch: pytest.MonkeyPatch, variable: str, sshd: object) -> None:
    monkeypatch.setenv("SSH_CONNECTION", variable)
    assert link_port.contact([], [])["sshd"] == sshd


@pytest.mark.parametrize(
    "message",
    [
        None,
        {"addresses": "10.0.0.1", "port": 5},
        {"addresses": [7], "port": 5},
        {"addresses": [], "port": 0},
        {"addresses": [], "port": 65536},
        {"addresses": [], "port": None, "sshd": ["10.0.0.1"]},
        {"addresses": [], "port": None, "sshd": ["10.0.0.1", "ssh"]},
    ],
)
def test_a_contact_that_no_honest_node_sends_is_malformed(message: object) -> None:
    with pytest.raises(messages.Malformed):
        messages.contact(message)


def test_a_contact_of_a_node_that_is_not_in_the_run_is_malformed() -> None:
    fields = {"addresses": [], "port": None}
    assert messages.contacts({"1": fields}, 2) == {1: Contact((), None)}
    for node in ("2", "-1", "one"):
        with pytest.raises(messages.Malformed):
            messages.contacts({node: fields}, 2)


def test_contacts_are_sent_once_and_again_when_they_change() -> None:
    contacts = Contacts()
    first, moved = Contact(("10.0.0.1",), 20001), Contact(("10.0.0.1",), 20002)
    assert contacts.learn(1, first)
    position = contacts.position
    assert not contacts.learn(1, first)
    assert contacts.since(position) == {}
    assert contacts.learn(1, moved)
    assert messages.contacts(json.loads(json.dumps(contacts.since(position))), 2) == {1: moved}
    assert messages.contacts(json.loads(json.dumps(contacts.since(0))), 2) == {1: moved}


def test_contacts_do_not_grow_when_a_node_moves_often() -> None:
    contacts = Contacts()
    contacts.learn(0, Contact(("10.0.0.9",), 20009))
    moves = [Contact(("10.0.0.1",), 20001 + number % 2) for number in range(1000)]
    assert all(contacts.learn(1, contact) for contact in moves)
    assert len(pickle.dumps(contacts)) < 1000
    assert messages.contacts(json.loads(json.dumps(contacts.since(contacts.position - 1))), 2) == {1: moves[-1]}
    assert set(contacts.since(1)) == {"1"}


@pytest.fixture
def acceptor(monkeypatch: pytest.MonkeyPatch) -> Acceptor:
    monkeypatch.setattr(acceptor_module, "MOST_STRANGERS", 3)
    return Acceptor([socket.create_server(("127.0.0.1", 0))], RUN_KEY, 1)


def accept_next(acceptor: Acceptor) -> None:
    (listener,) = acceptor.listening()
    assert select.select([listener], [], [], 10.0)[0]
    assert acceptor.on_readable(listener.fileno()) is None


def test_many_silent_strangers_use_up_no_descriptors_and_the_oldest_gives_way(acceptor: Acceptor) -> None:
    (listener,) = acceptor.listening()
    strangers = []
    for _ in range(5):
        strangers.append(socket.create_connection(listener.getsockname()))
        accept_next(acceptor)
    assert len(acceptor.links()) == 3
    for link in acceptor.links():
        link.close()
    for stranger in strangers:
        stranger.close()
    listener.close()


def test_a_stranger_that_says_nothing_is_closed_in_time(acceptor: Acceptor, monkeypatch: pytest.MonkeyPatch) -> None:
    (listener,) = acceptor.listening()
    with socket.create_connection(listener.getsockname()):
        accept_next(acceptor)
        acceptor.expire()
        assert len(acceptor.links()) == 1
        late = time.monotonic() + acceptor_module.HANDSHAKE_WINDOW + 1.0
        monkeypatch.setattr(time, "monotonic", lambda: late)
        acceptor.expire()
        assert acceptor.links() == []
    listener.close()
