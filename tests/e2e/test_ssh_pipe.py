"""A pipe to a command behaves the same over a real sshd and on this machine."""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.ssh.dialer import ConnectFailure
from orchestrator.ssh.pipe import STDERR_KEPT, Connection, LocalConnection

from .sshds import SSHD, Client, Sshd, host, read_all, sshd

needs_sshd = pytest.mark.skipif(not SSHD, reason="no sshd on this machine")


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


@pytest.fixture
def server(tmp_path: Path, client: Client) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd", client.key, "MaxSessions 1") as server:
        client.trust(server.known_line())
        yield server


IDLE = 3.0  # s

COMMAND = "env DDP_ORCH_TEST=1"
"""A `via` that starts a program with the arguments as they are, as `docker exec` does."""

WAYS = [
    "local",
    "command",
    pytest.param("paramiko", marks=needs_sshd),
    pytest.param("openssh", marks=needs_sshd),
]


@pytest.fixture(params=WAYS)
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    client: Client = request.getfixturevalue("client")
    if request.param == "local":
        connection: Connection = LocalConnection()
    elif request.param == "command":
        connection = client.dialer().connect(host(via=COMMAND))
    else:
        connection = client.dialer().connect(host(request.getfixturevalue("server"), via=request.param))
    yield connection
    connection.close()


def test_output_and_exit_status_come_through(connection: Connection) -> None:
    pipe = connection.open("echo out; echo err >&2; exit 7", 10)
    assert read_all(pipe) == b"out\n"
    assert pipe.exit_status(10) == 7
    wait_until(lambda: pipe.stderr() == b"err\n", 10, "stderr is read")


def test_the_exit_status_is_unknown_while_the_command_runs(connection: Connection) -> None:
    pipe = connection.open("cat", 10)
    assert pipe.exit_status(0.1) is None
    pipe.close_write()
    assert read_all(pipe) == b""
    assert pipe.exit_status(10) == 0


@needs_sshd
def test_a_connection_without_traffic_leaves_the_processor_alone(client: Client, server: Sshd) -> None:
    """By default paramiko looks ten times a second whether it was closed: at 64 hosts, 3 % of a core."""
    before = set(threading.enumerate())
    connection = client.dialer().connect(host(server))
    pipe = connection.open("cat", 10)
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert threads
    counted = wakes(threads)
    time.sleep(IDLE)
    assert wakes(threads) - counted < 2 * IDLE
    pipe.close_write()
    assert read_all(pipe) == b""
    connection.close()
    wait_until(lambda: not any(thread.is_alive() for thread in threads), 2, "the threads of the connection end")


def wakes(threads: list[threading.Thread]) -> int:
    """How often these threads of this process have begun to wait."""
    texts = [Path(f"/proc/self/task/{thread.native_id}/status").read_text() for thread in threads]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def test_ten_megabytes_each_way_at_once_arrive_unchanged(connection: Connection) -> None:
    data = random.Random(7).randbytes(10_000_000)
    pipe = connection.open("cat", 10)

    def send() -> None:
        for start in range(0, len(data), 333_333):
            pipe.send(data[start : start + 333_333])
        pipe.close_write()

    sender = threading.Thread(target=send)
    sender.start()
    received = read_all(pipe)
    sender.join()
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
    assert pipe.exit_status(10) == 0


def test_a_flood_on_stderr_stops_nothing_and_its_end_is_kept(connection: Connection) -> None:
    flood = "head -c 50000000 /dev/zero | tr '\\0' x >&2; echo the end >&2; echo done"
    pipe = connection.open(flood, 10)
    assert read_all(pipe, 60) == b"done\n"
    assert pipe.exit_status(10) == 0
    wait_until(lambda: pipe.stderr().endswith(b"the end\n"), 10, "all of stderr is read")
    assert len(pipe.stderr()) == STDERR_KEPT


def test_silence_is_a_timeout_and_no_end(connection: Connection) -> None:
    pipe = connection.open("sleep 0.5; echo late; sleep 60", 10)
    with pytest.raises(TimeoutError):
        pipe.recv(100, 0.05)
    assert pipe.recv(100, 10) == b"late\n"
    pipe.close()


def test_a_short_read_leaves_the_rest(connection: Connection) -> None:
    pipe = connection.open("printf abcdef", 10)
    assert [pipe.recv(2, 10) for _ in range(4)] == [b"ab", b"cd", b"ef", b""]
    assert pipe.recv(2, 10) == b""


def test_sending_to_a_command_that_ended_is_an_error(connection: Connection) -> None:
    pipe = connection.open("exec true", 10)
    assert read_all(pipe) == b""
    with pytest.raises(ConnectionError):
        for _ in range(100):
            pipe.send(b"x" * 100_000)


def test_sending_after_closing_is_an_error(connection: Connection) -> None:
    pipe = connection.open("cat", 10)
    pipe.close()
    pipe.close()
    with pytest.raises(ConnectionError):
        pipe.send(b"x")
    assert pipe.recv(1, 1) == b""


def test_closing_wakes_a_receiver(connection: Connection) -> None:
    pipe = connection.open("sleep 60", 10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pipe.recv, 1, None)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        connection.close()
        assert waiting.result(5) == b""


def test_several_commands_one_after_the_other_use_one_connection(connection: Connection) -> None:
    for number in range(20):
        pipe = connection.open(f"echo {number}", 10)
        assert read_all(pipe) == b"%d\n" % number
        pipe.close()


def test_bytes_of_the_command_that_are_no_text_arrive(connection: Connection) -> None:
    assert read_all(connection.open("printf %s '\udcff\udcfe é'", 10)) == b"\xff\xfe \xc3\xa9"


def test_the_command_is_in_a_session_of_its_own_and_at_home(connection: Connection) -> None:
    pid, session, where = read_all(connection.open("echo $$ $(ps -o sid= -p $$) $PWD", 10)).decode().split()
    assert session != str(os.getsid(0))
    assert Path(where) in (Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir))  # a login's is from the user database
    assert pid != str(os.getpid())


def test_closing_sends_no_signal(connection: Connection, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    command = f"trap 'echo caught > {proof}; exit' HUP TERM INT; cat > /dev/null; sleep 0.3; echo lives > {proof}"
    connection.open(command, 10).close()
    wait_until(proof.exists, 10, "the command went on after the end of its stdin")
    wait_until(lambda: proof.read_text() == "lives\n", 10, "it was not disturbed")


def test_a_local_command_s_signal_is_its_status() -> None:
    pipe = LocalConnection().open("kill -9 $$", 10)
    assert pipe.exit_status(10) == 128 + 9
    pipe.close()


def test_no_zombie_and_no_descriptor_is_left_of_local_commands() -> None:
    before = len(os.listdir("/proc/self/fd"))
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    others = set(children.read_text().split())
    connection = LocalConnection()
    for _ in range(20):
        connection.open("exec sleep 0.01", 10)
    connection.close()
    wait_until(lambda: others.issuperset(children.read_text().split()), 10, "all children are reaped")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 10, "all descriptors are closed")


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


@needs_sshd
def test_a_lost_connection_ends_the_stream_and_is_said_of_the_next_command(server: Sshd, client: Client) -> None:
    connection = client.dialer().connect(host(server))
    pipe = connection.open("sleep 60", 10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pipe.recv, 1, None)
        for pid in server.children():
            os.kill(pid, signal.SIGKILL)
        assert waiting.result(10) == b""
    assert pipe.exit_status(1) is None
    with pytest.raises(ConnectFailure) as caught:
        connection.open("true", 5)
    assert caught.value.code == "ssh-session-dropped"
    with pytest.raises(ConnectionError):
        pipe.send(b"x")
    connection.close()


@needs_sshd
def test_an_sshd_that_hangs_after_the_login_costs_no_more_than_the_time_limit(server: Sshd, client: Client) -> None:
    connection = client.dialer().connect(host(server))
    assert read_all(connection.open("echo all of its processes are there", 10))
    pids = server.children()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(ConnectFailure, match="in time"):
            connection.open("true", 0.5)
        assert time.monotonic() - began < 15  # of the 20 s that connecting may take, on a busy machine
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        connection.close()


@needs_sshd
def test_a_second_session_that_sshd_refuses_is_said(server: Sshd, client: Client) -> None:
    connection = client.dialer().connect(host(server))
    connection.open("sleep 60", 10)
    with pytest.raises(ConnectFailure, match="MaxSessions"):
        connection.open("true", 10)
    connection.close()


@needs_sshd
def test_new_keys_in_the_middle_of_a_transfer_harm_nothing(tmp_path: Path, client: Client) -> None:
    with sshd(tmp_path / "sshd", client.key, "RekeyLimit 1M") as server:
        client.trust(server.known_line())
        connection = client.dialer().connect(host(server))
        data = random.Random(8).randbytes(10_000_000)
        pipe = connection.open("cat", 10)
        sender = threading.Thread(target=lambda: (pipe.send(data), pipe.close_write()))
        sender.start()
        assert hashlib.sha256(read_all(pipe)).digest() == hashlib.sha256(data).digest()
        sender.join()
        connection.close()


def is_alive(pid: int) -> bool:
    """A dead process stays on the list where nobody reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(params=WAYS)
def roomy(request: pytest.FixtureRequest, tmp_path: Path, client: Client) -> Iterator[Connection]:
    """A connection with room for a second command."""
    if request.param == "local":
        yield LocalConnection()
        return
    if request.param == "command":
        connection = client.dialer().connect(host(via=COMMAND))
        yield connection
        connection.close()
        return
    with sshd(tmp_path / "roomy", client.key) as server:
        client.trust(server.known_line())
        connection = client.dialer().connect(host(server, via=request.param))
        yield connection
        connection.close()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_command_is_ended_with_all_that_it_has_started(roomy: Connection, stubborn: bool) -> None:
    trap = "trap '' TERM; " if stubborn else ""
    pipe = roomy.open(f'sh -c "{trap}echo \\$\\$; exec sleep 1000" & echo $$; {trap}wait', 10)
    said = b""
    while said.count(b"\n") < 2:
        said += pipe.recv(1000, 10)
    assert pipe.end()
    # SIGKILL has been sent when `end` returns; the kernel may still be at it
    wait_until(lambda: not any(map(is_alive, map(int, said.split()))), 10, "the processes have ended")
    pipe.close()


@needs_sshd
def test_a_command_that_cannot_be_ended_is_not_said_to_have_been(client: Client, server: Sshd) -> None:
    connection = client.dialer().connect(host(server))
    pipe = connection.open("echo $$; sleep 1000", 10)
    pid = int(pipe.recv(100, 10))
    assert not pipe.end()  # its sshd allows one command at a time
    assert is_alive(pid)
    os.killpg(pid, signal.SIGKILL)
    connection.close()
