"""Hosts reached by a program, the system's `ssh` above all: whom it trusts, why it failed, and what is left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.inventory.model import Host
from orchestrator.node.host import processes
from orchestrator.ssh.dialer import ConnectFailure, Dialer

from .sshds import SSHD, USER, Client, Sshd, host, make_key, public, read_all, sshd

pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd on this machine")

Start = Callable[..., Sshd]
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


@pytest.fixture
def start(tmp_path: Path, client: Client) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:
        count = iter(range(99))
        yield lambda *options, **more: stack.enter_context(
            sshd(tmp_path / f"sshd-{next(count)}", client.key, *options, **more)
        )


def by_ssh(server: Sshd | None = None, **keys: object) -> Host:
    return host(server, via="openssh", **keys)


def say_hi(dialer: Dialer, target: Host) -> str:
    connection = dialer.connect(target)
    try:
        return read_all(connection.open("echo hi", 20)).decode().strip()
    finally:
        connection.close()


def failure(dialer: Dialer, target: Host) -> ConnectFailure:
    with pytest.raises(ConnectFailure) as caught:
        dialer.connect(target).close()
    return caught.value


# --- the login ------------------------------------------------------------------------------------------------------


def test_strict_wins_over_an_ssh_config_that_would_accept(start: Start, client: Client) -> None:
    server = start()
    client.configure("StrictHostKeyChecking no", "UpdateHostKeys yes", f"IdentityFile {client.key}")
    unknown = failure(client.dialer(), by_ssh(server))
    assert unknown.code == "ssh-host-key-unknown" and "ddp-orch trust" in unknown.fix
    assert client.known_hosts.read_text() == ""
    assert "Accepted" not in server.log()
    assert say_hi(client.dialer(host_keys="accept-new"), by_ssh(server)) == "hi"
    assert len(client.known_hosts.read_text().splitlines()) == 1


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_changed_key_is_refused(start: Start, client: Client, tmp_path: Path, host_keys: str) -> None:
    server = start()
    client.trust(server.known_line(make_key(tmp_path / "old")))
    changed = failure(client.dialer(host_keys=host_keys), by_ssh(server))
    assert changed.code == "ssh-host-key-changed" and f"{client.known_hosts}:1" in changed.reason
    assert "Accepted" not in server.log()


def test_certificates_of_an_authority_are_enough_on_both_sides(start: Start, client: Client, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "ca")
    user_key = make_key(tmp_path / "user")
    server = start(f"TrustedUserCAKeys {authority}.pub", f"HostCertificate {tmp_path}/sshd-0/host_ed25519-cert.pub")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test"]
    subprocess.run([*sign, "-n", USER, f"{user_key}.pub"], check=True)
    subprocess.run([*sign, "-h", "-n", "127.0.0.1", f"{server.host_key}.pub"], check=True)
    os.kill(server.process.pid, signal.SIGHUP)  # reads its certificate, which it has not had so far
    wait_until(lambda: server.log().count("Server listening") == 2, 10, "sshd listens again")
    # not KEY-cert.pub beside the key: paramiko cannot use it
    moved = (tmp_path / "user-cert.pub").rename(tmp_path / "signed.pub")
    client.configure(f"IdentityFile {user_key}", f"CertificateFile {moved}", "IdentitiesOnly yes")
    client.trust(f"@cert-authority * {public(authority)}\n")
    assert say_hi(client.dialer(), by_ssh(server)) == "hi"
    assert "ED25519-CERT" in server.log()
    assert say_hi(client.dialer(), host(server)) == "hi"  # ssh is used by itself


def test_ssh_is_used_by_itself_for_keys_that_a_command_prints(start: Start, client: Client, tmp_path: Path) -> None:
    server = start()
    (tmp_path / "keys").write_text(server.known_line() + "\n")
    client.configure(f"IdentityFile {client.key}", f"KnownHostsCommand /bin/cat {tmp_path}/keys")
    assert say_hi(client.dialer(), host(server)) == "hi"

    (tmp_path / "keys").write_text("")
    assert failure(client.dialer(), host(server)).code == "ssh-host-key-unknown"


def test_a_revoked_key_is_refused_by_ssh_that_is_used_by_itself(start: Start, client: Client, tmp_path: Path) -> None:
    server = start()
    client.trust(server.known_line())
    client.configure(f"IdentityFile {client.key}", f"RevokedHostKeys {tmp_path}/revoked")
    (tmp_path / "revoked").write_text("")
    assert say_hi(client.dialer(), host(server)) == "hi"
    accepted = server.log().count("Accepted")
    (tmp_path / "revoked").write_text(Path(f"{server.host_key}.pub").read_text())
    assert failure(client.dialer(), host(server)).code.startswith("ssh-host-key-")
    assert server.log().count("Accepted") == accepted > 0


def test_a_denied_login_is_not_tried_again(start: Start, client: Client, tmp_path: Path) -> None:
    server = start()
    client.trust(server.known_line())
    client.configure(f"IdentityFile {make_key(tmp_path / 'other')}", "IdentitiesOnly yes")
    dialer = client.dialer()
    denied = failure(dialer, by_ssh(server))
    assert denied.code == "ssh-auth-denied" and f"`ssh -p {server.port} 127.0.0.1" in denied.fix
    assert failure(dialer, by_ssh(server)) is denied
    wait_until(lambda: "closed by authenticating" in server.log(), 10, "sshd saw the attempt")
    assert server.log().count("closed by authenticating") == 1


@pytest.mark.parametrize("jump_of", ["ssh_config", "the inventory", "a persistent connection"])
def test_a_jump_host_that_wants_a_password_gets_none(start: Start, client: Client, jump_of: str) -> None:
    """`ssh -o BatchMode=yes` starts another ssh for the jump host, without the option. It sends empty passwords."""
    outer, last = start("PasswordAuthentication yes", "AuthenticationMethods publickey,password"), start()
    client.trust(outer.known_line(), last.known_line())
    jump = f"{USER}@127.0.0.1:{outer.port}"
    target = by_ssh(last, proxy_jump=jump)
    if jump_of != "the inventory":
        shared = ("ControlPath ~/.ssh/%C", "ControlPersist 60") if jump_of == "a persistent connection" else ()
        lines = (f"IdentityFile {client.key}", *shared, "Host behind", "HostName 127.0.0.1", f"ProxyJump {jump}")
        client.configure(*lines)
        target = by_ssh(last, address="behind")
    assert failure(client.dialer(), target).code == "ssh-auth-denied"
    wait_until(lambda: "closed by authenticating" in outer.log(), 10, "the jump host saw the attempt")
    assert outer.log().count("Partial publickey") == 1
    assert "Failed password" not in outer.log()


def test_hosts_that_are_down_or_unknown_are_told_apart(client: Client) -> None:
    assert failure(client.dialer(), by_ssh(port=1)).code == "ssh-connection-refused"
    assert failure(client.dialer(), by_ssh(address="nowhere.invalid")).code == "ssh-name-unresolved"
    option = failure(client.dialer(), by_ssh(address="-oProxyCommand=touch$IFS/tmp/x"))
    assert option.phase == "ssh config"


def test_jump_hosts_of_the_inventory_lead_to_a_host(start: Start, client: Client) -> None:
    outer, last = start(), start()
    client.trust(outer.known_line(), last.known_line())
    jump = f"{USER}@127.0.0.1:{outer.port}"
    dialer = client.dialer()
    hosts = [by_ssh(last, name=f"gpu{number}", proxy_jump=jump) for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda each: say_hi(dialer, each), hosts)) == ["hi"] * 12
    assert outer.sessions() >= 12 == last.sessions()


def test_logins_that_a_busy_sshd_drops_are_tried_again(start: Start, client: Client) -> None:
    server = start("MaxStartups 2:100:3")
    client.trust(server.known_line())
    dialer = client.dialer(timeout=60)
    hosts = [by_ssh(server, name=f"gpu{number}") for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(lambda each: say_hi(dialer, each), hosts)) == ["hi"] * 24
    assert "MaxStartups" in server.log()


def test_nothing_is_forwarded_and_nothing_of_ssh_config_is_run(start: Start, client: Client, tmp_path: Path) -> None:
    server = start("AllowAgentForwarding yes", "X11Forwarding yes")
    client.trust(server.known_line())
    client.configure(
        f"IdentityFile {client.key}",
        "ForwardAgent yes",
        "ForwardX11 yes",
        "PermitLocalCommand yes",
        "LocalCommand echo local",
        "RemoteCommand echo remote",
        "RequestTTY force",
        f"ControlPath {tmp_path}/master",
        "ControlMaster auto",
        "ControlPersist yes",
    )
    connection = client.dialer().connect(by_ssh(server))
    pipe = connection.open("echo ${SSH_AUTH_SOCK-none} ${DISPLAY-none} $(tty)", 20)
    assert read_all(pipe).decode().split() == ["none", "none", "not", "a", "tty"]
    connection.close()
    assert not (tmp_path / "master").exists()


# --- commands -------------------------------------------------------------------------------------------------------


def test_what_a_login_prints_is_not_output_of_the_command(client: Client) -> None:
    noisy = host(via="sh -c 'echo welcome; seq 1000; exec \"$@\"' noisy")
    assert say_hi(client.dialer(), noisy) == "hi"


def test_a_command_that_ends_without_a_shell_is_explained_on_one_line(client: Client) -> None:
    broken = host(via="sh -c 'printf \"\\033]0;title\\007no such\\ncontainer\" >&2; exit 7' {host}")
    reason = failure(client.dialer(), broken).reason
    assert "status 7" in reason and reason.endswith(": no such container") and "\x1b" not in reason
    assert "no program" in failure(client.dialer(), host(via="no-such-program {host}")).reason


def test_a_command_that_starts_no_shell_is_ended_at_the_time_limit(client: Client) -> None:
    others = {each.pid for each in processes.descendants(os.getpid())}  # of tests before this one
    silent = failure(client.dialer(timeout=0.5), host(via="sh -c 'trap \"\" TERM; sleep 1000' {host}"))
    assert silent.code == "ssh-unreachable" and "in time" in silent.reason
    ours = [each.pid for each in processes.descendants(os.getpid()) if each.pid not in others]
    wait_until(lambda: all(map(is_gone, ours)), 10, "it has ended")


# --- what is left of it ---------------------------------------------------------------------------------------------

HOLD = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from e2e.sshds import Client, host
client = Client.__new__(Client)
client.config = Path(sys.argv[2])
connections = []
def connect():
    connections.append(client.dialer().connect(host(port=int(sys.argv[3]), via="openssh")))
    connections[0].open("sleep 60", 20)
thread = threading.Thread(target=connect)  # its end must not end the program that it started
thread.start()
thread.join()
print("open", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_ssh_is_left_of_a_controller_that_was_killed(start: Start, client: Client, number: signal.Signals) -> None:
    server = start()
    client.trust(server.known_line())
    argv = [sys.executable, "-c", HOLD, str(TESTS), str(client.config), str(server.port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=TESTS.parent) as controller:
        try:
            assert controller.stdout and controller.stdout.readline() == b"open\n"
            [ssh] = processes.descendants(controller.pid)
            assert os.getsid(ssh.pid) == ssh.pid  # so Ctrl-C in a terminal does not reach it
            assert ssh.pid in {each.pid for each in processes.descendants(os.getpid())}
        except BaseException:
            controller.kill()
            raise
        controller.send_signal(number)
    wait_until(lambda: is_gone(ssh.pid), 10, "its ssh has ended")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
