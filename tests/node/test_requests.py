"""What processes of the same user ask of a guard, and what strangers get."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from lab.waiting import wait_until
from local_runs import Runs

from orchestrator.hosts.session import Refused
from orchestrator.node.guard import requests
from orchestrator.node.host import processes

WAIT = "import time; print('here', flush=True); time.sleep(300)"
AS_A_STRANGER = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection.connect(bytes.fromhex(sys.argv[1]))
connection.sendall(b'{"do": "ticket"}\\n')
print(len(connection.recv(65536)))
"""


def test_a_ticket_has_the_key_and_the_secrets_of_the_run(runs: Runs) -> None:
    run = runs.start(WAIT, secret={"TOKEN": "x" * 1000})
    run.wait_for("here", "1.0.out")
    private = run.hosts[0].session.request("ticket", {"run_id": run.run_id})["private"]
    assert private["key"] == run.key.hex() and private["secrets"] == {"TOKEN": "x" * 1000}
    run.stop()
    with pytest.raises(Refused) as refused:
        run.hosts[0].session.request("ticket", {"run_id": run.run_id})
    assert refused.value.code == "no-guard"


def test_a_ticket_larger_than_a_socket_holds_arrives_whole(runs: Runs) -> None:
    secret = {f"TOKEN_{number}": "x" * 100_000 for number in range(10)}
    run = runs.start(WAIT, secret=secret)
    assert run.hosts[0].session.request("ticket", {"run_id": run.run_id})["private"]["secrets"] == secret
    run.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_gets_no_answer(runs: Runs) -> None:
    run = runs.start(WAIT)
    run.wait_for("here", "1.0.out")
    name = requests.socket_name(str(run.folder())).hex()
    result = subprocess.run([sys.executable, "-c", AS_A_STRANGER, name], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "0" or "BrokenPipe" in result.stderr or "ConnectionReset" in result.stderr
    run.stop()


@pytest.mark.parametrize(
    "request_line", [b"[]\n", b"\xff\n", b"{" * 5000 + b"\n", b'{"do": "nothing"}\n', b'{"do": 7}\n']
)
def test_a_malformed_request_is_refused_and_the_guard_lives(runs: Runs, request_line: bytes) -> None:
    run = runs.start(WAIT)
    run.wait_for("here", "1.0.out")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20.0)
        connection.connect(requests.socket_name(str(run.folder())))
        connection.sendall(request_line)
        assert connection.recv(65536).startswith(b'{"error"')
    assert processes.alive(run.guard())
    run.stop()


def test_silent_and_endless_guests_neither_block_nor_stay(runs: Runs) -> None:
    run = runs.start(WAIT)
    run.wait_for("here", "1.0.out")
    name = requests.socket_name(str(run.folder()))
    guests = [socket.socket(socket.AF_UNIX) for _ in range(requests.MOST_GUESTS + 1)]
    for guest in guests[: requests.MOST_GUESTS]:
        guest.connect(name)
    guests[0].sendall(b"x" * (requests.LONGEST + 1))
    guests[0].settimeout(20.0)
    assert guests[0].recv(1) == b""  # too long: closed at once
    guests[-1].connect(name)  # in its place
    began = time.monotonic()
    wait_until(lambda: _answers(run.folder().as_posix()), 40.0, "the silent guests are dropped")
    assert time.monotonic() - began < 3 * requests.WINDOW
    for guest in guests:
        guest.close()
    run.stop()


def _answers(folder: str) -> bool:
    try:
        return "private" in requests.ask(folder, {"do": "ticket"})
    except requests.NoAnswer:
        return False
