"""Whether the SSH server of a silent node is found to answer."""

from __future__ import annotations

import os
import select
import socket

import pytest

from orchestrator.node.link.contacts import Contact, Contacts
from orchestrator.node.roles.node_watch import NodeWatch
from orchestrator.node.roles.server_probes import ServerProbes

LEASE = 8.0


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def probes(sshd: tuple[str, int] | None) -> ServerProbes:
    contacts = Contacts()
    contacts.learn(1, Contact(("127.0.0.1",), 29401, sshd))
    return ServerProbes(contacts)


def lines_of_a_loss(probing: ServerProbes) -> list[str]:
    """What is said from the last message of a node to its loss."""
    lines: list[str] = []
    watch = NodeWatch(["head", "gpu-01"], LEASE, False, lines.append, probing)
    watch.join(1, 0.0)
    assert watch.judge([1], set(), 5.0) == []
    assert [loss.node for loss in watch.judge([1], set(), 9.0)] == [1]
    return lines


def test_a_host_that_is_up_is_said_to_be_up(server: socket.socket) -> None:
    with server:
        (*_, line) = lines_of_a_loss(probes(server.getsockname()))
        assert "gpu-01" in line and "29401" in line and "SSH server" in line


@pytest.mark.parametrize("sshd", [None, ("127.0.0.1", 1), ("no address", 22)], ids=["unknown", "refused", "malformed"])
def test_nothing_is_said_of_a_host_whose_ssh_server_does_not_answer(sshd: tuple[str, int] | None) -> None:
    assert all("SSH server" not in line for line in lines_of_a_loss(probes(sshd)))


def test_a_node_that_is_heard_again_leaves_no_connection(server: socket.socket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    probing = probes(server.getsockname())
    watch = NodeWatch(["head", "gpu-01"], LEASE, False, lambda _: None, probing)
    watch.join(1, 0.0)
    watch.judge([1], set(), 5.0)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    watch.join(1, 6.0)
    watch.judge([1], set(), 6.5)
    assert len(os.listdir("/proc/self/fd")) == before
    server.close()


def test_the_server_has_time_until_the_end(server: socket.socket) -> None:
    with server:
        probing = probes(server.getsockname())
        probing.begin(1)
        assert select.select([server], [], [], 10.0)[0]
        assert probing.end(1)
        assert not probing.end(1)
