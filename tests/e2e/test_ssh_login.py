"""Logging in to real sshds: whom we trust, what we offer, and what is said when it fails."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.checks.hosts import report_other_keys
from orchestrator.inventory.model import Host
from orchestrator.ssh.dialer import ConnectFailure, Dialer
from orchestrator.ssh.known_hosts import KnownHosts
from orchestrator.ssh.pipe import Connection

from .sshds import SSHD, USER, Client, Sshd, host, make_key, public, read_all, sshd

pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd on this machine")

Start = Callable[..., Sshd]

TESTS = Path(__file__).resolve().parents[1]
AT_MOST = 15  # s for what a limit of 1.5 or 2 s must end on a busy machine; the default limit is 20 s
CHILD_ENV = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


@pytest.fixture
def start(tmp_path: Path, client: Client) -> Iterator[Start]:
    """`start("MaxStartups 2", ...)`: an sshd that lets the client in; the client does not know its key yet."""
    with contextlib.ExitStack() as stack:
        count = iter(range(99))
        yield lambda *options, **more: stack.enter_context(
            sshd(tmp_path / f"sshd-{next(count)}", client.key, *options, **more)
        )


@pytest.fixture
def server(start: Start, client: Client) -> Sshd:
    """An sshd as it comes, known to the client."""
    server = start()
    client.trust(server.known_line())
    return server


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`agent(key, ...)`: the socket of an ssh-agent that holds these keys."""
    with contextlib.ExitStack() as stack:

        def start(*keys: Path, passphrase: str = "") -> str:
            path = str(tmp_path / "agent")
            process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
            stack.callback(process.wait, 10)
            stack.callback(process.kill)
            # its socket exists before it listens there; `ssh-add -l` exits with 2 while nothing answers
            ask_keys = ["ssh-add", "-l"]
            wait_until(
                lambda: (
                    subprocess.run(ask_keys, env=os.environ | {"SSH_AUTH_SOCK": path}, capture_output=True).returncode
                    != 2
                ),
                10,
                "the agent listens",
            )
            ask = tmp_path / "askpass"
            ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
            ask.chmod(0o700)
            env = os.environ | {"SSH_AUTH_SOCK": path, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
            for key in keys:
                subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True)
            return path

        yield start


def say_hi(connection: Connection) -> str:
    pipe = connection.open("echo hi", 10)
    said = read_all(pipe).decode().strip()
    assert pipe.exit_status(10) == 0
    return said


def works(dialer: Dialer, target: Host) -> bool:
    connection = dialer.connect(target)
    try:
        return say_hi(connection) == "hi"
    finally:
        connection.close()


def failure(dialer: Dialer, target: Host) -> ConnectFailure:
    with pytest.raises(ConnectFailure) as caught:
        dialer.connect(target).close()
    assert str(caught.value).startswith(f"{target.name}: ")
    return caught.value


# --- host keys ------------------------------------------------------------------------------------------------------


def test_a_known_host_lets_us_in(server: Sshd, client: Client) -> None:
    assert works(client.dialer(), host(server))


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_way_to_accept_it(start: Start, client: Client) -> None:
    server = start()
    said = failure(client.dialer(), host(server))
    shown = subprocess.run(["ssh-keygen", "-lf", f"{server.host_key}.pub"], capture_output=True, text=True, check=True)
    assert said.code == "ssh-host-key-unknown"
    assert shown.stdout.split()[1] in said.reason
    assert f"`ssh -p {server.port} 127.0.0.1`" in said.fix and "accept-new" in said.fix
    assert client.known_hosts.read_text() == ""
    assert "Accepted" not in server.log()


def test_strict_wins_over_an_ssh_config_that_would_accept(start: Start, client: Client) -> None:
    server = start()
    client.configure("StrictHostKeyChecking no", f"IdentityFile {client.key}")
    assert failure(client.dialer(), host(server)).code == "ssh-host-key-unknown"


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_changed_key_is_refused_and_the_line_of_the_old_one_named(
    start: Start, client: Client, tmp_path: Path, host_keys: str
) -> None:
    server = start()
    old = make_key(tmp_path / "old")
    client.trust("# first line\n", server.known_line(old))
    before = client.known_hosts.read_text()
    said = failure(client.dialer(host_keys=host_keys), host(server))
    assert said.code == "ssh-host-key-changed"
    assert f"{client.known_hosts}:2" in said.reason and "CHANGED" in said.reason
    assert client.known_hosts.read_text() == before
    assert "Accepted" not in server.log()


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_revoked_key_is_refused_though_it_is_known(start: Start, client: Client, host_keys: str) -> None:
    server = start()
    client.trust(server.known_line(), f"@revoked * {public(server.host_key)}\n")
    said = failure(client.dialer(host_keys=host_keys), host(server))
    assert said.code == "ssh-host-key-changed" and "revoked" in said.reason


def test_a_host_certificate_s_authority_is_not_taken_for_trust(start: Start, client: Client, tmp_path: Path) -> None:
    server = start()
    authority = make_key(tmp_path / "ca")
    client.trust(f"@cert-authority * {public(authority)}\n")
    said = failure(client.dialer(), host(server))
    assert said.code == "ssh-host-key-unknown" and "authority" in said.reason


def test_accept_new_records_the_key_once_for_many_threads(start: Start, client: Client) -> None:
    server = start()
    client.known_hosts.unlink()
    client.configure("HashKnownHosts yes", f"IdentityFile {client.key}")
    dialer = client.dialer(host_keys="accept-new")
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: works(dialer, host(server)), range(8)))
    assert len(client.known_hosts.read_text().splitlines()) == 1
    assert client.known_hosts.read_text().startswith("|1|")
    assert stat.S_IMODE(client.known_hosts.stat().st_mode) == 0o600
    assert works(client.dialer(), host(server))  # a strict one, which reads the file anew


def test_names_hashed_in_known_hosts_are_found(server: Sshd, client: Client) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(client.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in client.known_hosts.read_text()
    assert works(client.dialer(), host(server))


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_host_known_by_one_of_its_keys_is_asked_for_that_one(start: Start, client: Client, kind: str) -> None:
    server = start(kinds=("ed25519", "ecdsa", "rsa"))
    client.trust(server.known_line(server.directory / f"host_{kind}"))
    assert works(client.dialer(), host(server))


def test_host_key_alias_is_the_name_that_is_looked_up(start: Start, client: Client) -> None:
    server = start()
    client.configure("HostKeyAlias pool", f"IdentityFile {client.key}")
    client.trust(f"pool {public(server.host_key)}\n")
    assert works(client.dialer(), host(server))


def test_no_weak_algorithm_is_agreed_upon(start: Start, client: Client) -> None:
    server = start("Ciphers aes128-cbc,3des-cbc")
    client.trust(server.known_line())
    said = failure(client.dialer(), host(server))
    assert said.phase == "key exchange" and "cipher" in said.reason


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_rsa_and_ecdsa_keys_log_in_too(start: Start, client: Client, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "key", kind)
    server = start()
    client.trust(server.known_line())
    (server.directory / "authorized_keys").write_text(public(key) + "\n")
    assert works(client.dialer(), host(server, identity_file=str(key)))


def test_keys_in_the_older_formats_are_read(start: Start, client: Client, tmp_path: Path) -> None:
    key = tmp_path / "pem"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "", "-f", str(key)], check=True)
    server = start()
    client.trust(server.known_line())
    (server.directory / "authorized_keys").write_text(public(key) + "\n")
    assert works(client.dialer(), host(server, identity_file=str(key)))


def test_a_wrong_user_is_denied_and_not_tried_again(server: Sshd, client: Client) -> None:
    dialer = client.dialer()
    said = failure(dialer, host(server, user="nobody-of-that-name"))
    assert said.code == "ssh-auth-denied"
    assert "nobody-of-that-name" in said.reason and str(client.key) in said.reason
    connections = server.log().count("Connection from")
    assert failure(dialer, host(server, user="nobody-of-that-name")).code == "ssh-auth-denied"
    assert server.log().count("Connection from") == connections == 1


def test_a_user_certificate_beside_its_key_is_offered_first(start: Start, client: Client, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "ca")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", USER, f"{client.key}.pub"]
    subprocess.run(sign, check=True)
    server = start(f"TrustedUserCAKeys {authority}.pub", "MaxAuthTries 1")
    (server.directory / "authorized_keys").write_text("")
    client.trust(server.known_line())
    assert works(client.dialer(), host(server))
    assert "ED25519-CERT" in server.log()


def test_a_locked_key_is_asked_for_once_before_the_fan_out(start: Start, client: Client, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    server = start()
    client.trust(server.known_line())
    (server.directory / "authorized_keys").write_text(public(key) + "\n")
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "open sesame"

    hosts = [host(server, name=f"gpu{n}", identity_file=str(key)) for n in range(4)]
    dialer = client.dialer(ask=ask)
    dialer.prepare(hosts)
    assert len(prompts) == 1 and str(key) in prompts[0]
    assert all(works(dialer, each) for each in hosts)
    assert len(prompts) == 1


def test_a_locked_key_without_a_terminal_is_an_error_before_anything_is_sent(
    server: Sshd, client: Client, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    target = host(server, identity_file=str(key))
    dialer = client.dialer()
    dialer.prepare([target])
    said = failure(dialer, target)
    assert said.code == "ssh-auth-denied"
    assert str(key) in said.reason and f"`ssh-add {key}`" in said.reason
    assert "Connection from" not in server.log()


def test_a_key_that_others_can_read_is_told_with_the_command_that_closes_it(
    server: Sshd, client: Client, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "my open key")
    key.chmod(0o644)
    client.trust(server.known_line())
    (server.directory / "authorized_keys").write_text(public(key) + "\n")
    said = failure(client.dialer(), host(server, identity_file=str(key)))
    assert said.code == "ssh-key-permissions"
    command = re.findall("`([^`]+)`", said.reason)[0]
    subprocess.run(["bash", "-c", command], check=True)
    assert works(client.dialer(), host(server, identity_file=str(key)))


def test_a_wrong_pass_phrase_is_said_and_no_host_is_tried_with_it(server: Sshd, client: Client, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    target = host(server, identity_file=str(key))
    prompts: list[str] = []
    dialer = client.dialer(ask=lambda prompt: prompts.append(prompt) or "wrong")
    dialer.prepare([target])
    first, *others = prompts
    assert str(key) in first and [prompt.endswith(f". {first}") for prompt in others] == [True, True]
    assert f"{key} " in failure(dialer, target).reason
    assert "Connection from" not in server.log()


def test_a_locked_key_in_the_agent_needs_no_pass_phrase(
    start: Start, client: Client, tmp_path: Path, agent: Callable[..., str]
) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    server = start()
    client.trust(server.known_line())
    (server.directory / "authorized_keys").write_text(public(key) + "\n")
    target = host(server, identity_file=str(key))
    dialer = client.dialer(agent=agent(key, passphrase="open sesame"), ask=pytest.fail)
    dialer.prepare([target])
    assert works(dialer, target)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_key_that_only_the_agent_has_logs_in(
    start: Start, client: Client, tmp_path: Path, agent: Callable[..., str], kind: str
) -> None:
    key = make_key(tmp_path / "key", kind)
    server = start()
    client.trust(server.known_line())
    (server.directory / "authorized_keys").write_text(public(key) + "\n")
    path = agent(key)
    key.unlink()
    client.configure("IdentityFile none", f"IdentityAgent {path}")
    assert works(client.dialer(), host(server))


def test_the_named_key_is_offered_before_the_seven_of_the_agent(
    start: Start, client: Client, tmp_path: Path, agent: Callable[..., str]
) -> None:
    server = start("MaxAuthTries 2")
    client.trust(server.known_line())
    client.configure("IdentityFile none")
    path = agent(*[make_key(tmp_path / f"other{n}") for n in range(7)])
    assert works(client.dialer(agent=path), host(server, identity_file=str(client.key)))
    assert "Failed publickey" not in server.log()
    said = failure(client.dialer(agent=path), host(server))
    assert said.code == "ssh-auth-denied" and "other0 " in said.reason and "closed" in said.reason


def test_a_key_that_is_used_in_place_of_the_named_one_is_told_once(
    server: Sshd, client: Client, tmp_path: Path, agent: Callable[..., str]
) -> None:
    client.configure("IdentityFile none")
    wrong = make_key(tmp_path / "wrong")
    dialer = client.dialer(agent=agent(client.key))
    target = host(server, identity_file=str(wrong))
    assert works(dialer, target)
    ((name, key),) = dialer.take_other_keys().items()
    assert (name, key.named) == (target.name, str(wrong)) and "(in the agent)" in key.accepted
    (finding,) = report_other_keys({name: key})
    assert (finding.severity, finding.code) == ("warning", "ssh-auth-denied") and str(wrong) in finding.message
    assert works(dialer, target) and not dialer.take_other_keys()


def test_the_named_key_is_nothing_to_tell_of(server: Sshd, client: Client, agent: Callable[..., str]) -> None:
    for dialer in (client.dialer(), client.dialer(agent=agent(client.key))):
        assert works(dialer, host(server, identity_file=str(client.key)))
        assert not dialer.take_other_keys()


def test_a_named_key_in_the_agent_is_taken_from_there_first(
    start: Start, client: Client, tmp_path: Path, agent: Callable[..., str]
) -> None:
    server = start("MaxAuthTries 1")
    client.trust(server.known_line())
    path = agent(*[make_key(tmp_path / f"other{n}") for n in range(6)], client.key)
    client.key.unlink()  # the .pub stays, and says which of the agent's keys it is
    assert works(client.dialer(agent=path), host(server, identity_file=str(client.key)))


def test_identities_only_keeps_the_agent_s_other_keys_back(
    server: Sshd, client: Client, tmp_path: Path, agent: Callable[..., str]
) -> None:
    wrong = make_key(tmp_path / "wrong")
    client.configure("IdentitiesOnly yes", f"IdentityFile {wrong}")
    said = failure(client.dialer(agent=agent(client.key)), host(server))
    assert said.code == "ssh-auth-denied" and "agent" not in said.reason


def test_an_agent_shared_by_many_logins_signs_for_each(start: Start, client: Client, agent: Callable[..., str]) -> None:
    server = start("MaxStartups 100")
    client.trust(server.known_line())
    client.configure("IdentityFile none")
    dialer = client.dialer(agent=agent(client.key))
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: works(dialer, host(server)), range(16)))


def test_an_agent_that_refuses_to_sign_is_said(
    server: Sshd, client: Client, agent: Callable[..., str], tmp_path: Path
) -> None:
    path = agent(client.key)
    # -c: the agent asks before it signs, here a program that says no
    no = tmp_path / "askpass"
    no.write_text("#!/bin/sh\nexit 1\n")
    env = os.environ | {"SSH_AUTH_SOCK": path}
    subprocess.run(["ssh-add", "-q", "-D"], env=env, check=True)
    subprocess.run(["ssh-add", "-q", "-c", str(client.key)], env=env, check=True)
    said = failure(client.dialer(agent=path), host(server))
    assert said.code == "ssh-auth-denied" and "agent" in said.reason


def test_an_agent_that_is_gone_is_as_none(server: Sshd, client: Client, tmp_path: Path) -> None:
    assert works(client.dialer(agent=str(tmp_path / "nothing")), host(server))


def test_a_key_that_others_can_read_is_not_used(server: Sshd, client: Client) -> None:
    client.key.chmod(0o644)
    for target in (host(server), host(server, identity_file=str(client.key))):
        said = failure(client.dialer(), target)
        assert said.code == "ssh-key-permissions"
        assert str(client.key) in said.reason and "0644" in said.reason


def test_a_named_key_that_is_not_there_is_said_before_anything_is_sent(server: Sshd, client: Client) -> None:
    said = failure(client.dialer(), host(server, identity_file="/nowhere/id"))
    assert said.code == "ssh-auth-denied" and "/nowhere/id " in said.reason
    assert "Connection from" not in server.log()


def test_a_security_key_is_refused_by_name(server: Sshd, client: Client, tmp_path: Path) -> None:
    # A public key of that kind is enough to know: making a private one takes the device.
    sk = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIJW1"
    key = tmp_path / "id_sk"
    shutil.copy(client.key, key)
    key.write_text(key.read_text().replace("OPENSSH PRIVATE", "EC PRIVATE"))  # so that the .pub decides
    key.with_name("id_sk.pub").write_text(sk + "A" * (-len(sk.split()[1]) % 4) + "\n")
    assert "security key" in failure(client.dialer(), host(server, identity_file=str(key))).reason


def test_a_server_that_wants_more_than_a_key_is_said(start: Start, client: Client) -> None:
    server = start("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    client.trust(server.known_line())
    said = failure(client.dialer(), host(server))
    assert said.code == "ssh-auth-denied" and "password" in said.reason


# --- the way there --------------------------------------------------------------------------------------------------


def test_include_and_match_of_ssh_config_decide(server: Sshd, client: Client, tmp_path: Path) -> None:
    (tmp_path / "more").write_text(f"Host cluster-*\n HostName 127.0.0.1\n IdentityFile {client.key}\n")
    client.configure(f"Include {tmp_path}/more", f'Match host 127.0.0.1 exec "true"\n Port {server.port}')
    assert works(client.dialer(), host(name="gpu1", address="cluster-7", port=server.port))


def test_two_jumps_lead_to_a_host_and_the_first_is_shared(start: Start, client: Client) -> None:
    outer, inner, last = start(), start(), start()
    client.trust(outer.known_line(), inner.known_line(), last.known_line())
    jumps = f"{USER}@127.0.0.1:{outer.port},127.0.0.1:{inner.port}"
    dialer = client.dialer()
    hosts = [host(last, name=f"gpu{n}", proxy_jump=jumps) for n in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(lambda each: works(dialer, each), hosts))
    assert (outer.sessions(), inner.sessions(), last.sessions()) == (1, 1, 12)
    dialer.close()


def test_a_jump_host_that_died_is_reached_anew(start: Start, client: Client) -> None:
    jump, last = start(), start()
    client.trust(jump.known_line(), last.known_line())
    target = host(last, proxy_jump=f"127.0.0.1:{jump.port}")
    dialer = client.dialer()
    assert works(dialer, target)
    [session] = [shared.connection.result() for shared in dialer._jump_hosts._shared.values()]
    session.close()
    wait_until(lambda: not session.alive, 5, "the lost connection is noticed")
    assert works(dialer, target)
    assert jump.sessions() == 2


def test_a_jump_host_with_a_changed_key_is_refused_for_all_behind_it(
    start: Start, client: Client, tmp_path: Path
) -> None:
    jump, last = start(), start()
    client.trust(jump.known_line(make_key(tmp_path / "old")), last.known_line())
    dialer = client.dialer()
    for name in ("gpu1", "gpu2"):
        said = failure(dialer, host(last, name=name, proxy_jump=f"127.0.0.1:{jump.port}"))
        assert said.code == "ssh-host-key-changed" and said.phase.startswith("jump host ")
    assert "Accepted" not in jump.log() + last.log()


def test_a_dead_jump_host_is_waited_for_once_though_hosts_queue(client: Client) -> None:
    with listener(b"", close=False) as (port, calls):
        dialer = client.dialer(timeout=1)
        with ThreadPoolExecutor(2) as pool:
            hosts = [host(port=22, name=f"gpu{n}", proxy_jump=f"127.0.0.1:{port}") for n in range(8)]
            codes = {each.code for each in pool.map(lambda each: failure(dialer, each), hosts)}
    assert codes == {"ssh-unreachable"} and len(calls) == 1


def test_a_host_key_behind_a_jump_is_checked_as_well(start: Start, client: Client) -> None:
    jump, last = start(), start()
    client.trust(jump.known_line())
    said = failure(client.dialer(), host(last, proxy_jump=f"127.0.0.1:{jump.port}"))
    assert (said.code, said.phase) == ("ssh-host-key-unknown", "host key")


def test_each_host_behind_a_jump_gets_its_own_reason(start: Start, client: Client) -> None:
    jump, last = start(), start()
    client.trust(jump.known_line(), last.known_line())
    closed = unused_port()
    dialer = client.dialer()

    def attempt(number: int) -> str:
        proxy = f"127.0.0.1:{jump.port}"
        if number % 3 == 0:
            return "ok" if works(dialer, host(last, proxy_jump=proxy)) else "?"
        if number % 3 == 1:
            return failure(dialer, host(port=closed, proxy_jump=proxy)).code
        return failure(dialer, host(port=22, address="no-such-name.invalid", proxy_jump=proxy)).code

    with ThreadPoolExecutor(12) as pool:
        codes = list(pool.map(attempt, range(12)))
    assert codes == ["ok", "ssh-connection-refused", "ssh-name-unresolved"] * 4


def test_a_jump_that_forbids_forwarding_is_said(start: Start, client: Client) -> None:
    jump, last = start("AllowTcpForwarding no"), start()
    client.trust(jump.known_line(), last.known_line())
    said = failure(client.dialer(), host(last, proxy_jump=f"127.0.0.1:{jump.port}"))
    assert said.code == "ssh-unreachable" and "prohibited" in said.reason


def test_a_proxy_command_carries_the_connection(server: Sshd, client: Client, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while d := os.read(0, 65536): s.sendall(d)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while d := s.recv(65536): os.write(1, d)\n"
    )
    client.configure(f"IdentityFile {client.key}", f"ProxyCommand {sys.executable} {relay} %h %p")
    connection = client.dialer().connect(host(server))
    assert say_hi(connection) == "hi"
    connection.close()


def test_a_proxy_command_that_ends_is_said(server: Sshd, client: Client) -> None:
    client.configure(f"IdentityFile {client.key}", "ProxyCommand false")
    said = failure(client.dialer(timeout=2), host(server))
    assert "false" in said.fix


# --- hosts that are not there ---------------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def listener(answer: bytes, *, close: bool) -> Iterator[tuple[int, list[float]]]:
    """A server that is no sshd: says `answer` and hangs up, or stays. Yields its port and when it was called."""
    calls: list[float] = []
    kept = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    calls.append(time.monotonic())
                    connection.sendall(answer)
                    if close:
                        connection.close()
                    else:
                        kept.append(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], calls
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for connection in kept:
                connection.close()


def test_a_refused_port_fails_at_once(client: Client) -> None:
    began = time.monotonic()
    said = failure(client.dialer(), host(port=unused_port()))
    assert said.code == "ssh-connection-refused" and said.phase == "connect"
    assert time.monotonic() - began < 15  # of the 20 s that connecting may take


def test_a_name_that_does_not_exist_is_said(client: Client) -> None:
    said = failure(client.dialer(), host(address="no-such-name.invalid", port=22))
    assert said.code == "ssh-name-unresolved" and "no-such-name.invalid" in said.reason


def test_a_port_that_never_greets_costs_no_more_than_the_time_limit(client: Client) -> None:
    with listener(b"", close=False) as (port, _):
        began = time.monotonic()
        said = failure(client.dialer(timeout=1.5), host(port=port))
        assert 1.4 < time.monotonic() - began < AT_MOST
    assert said.code == "ssh-unreachable" and said.phase == "greeting"


def test_a_port_that_greets_and_falls_silent_costs_no_more_than_the_time_limit(client: Client) -> None:
    with listener(b"SSH-2.0-OpenSSH_9.2\r\n", close=False) as (port, _):
        began = time.monotonic()
        said = failure(client.dialer(timeout=1.5), host(port=port))
        assert 1.4 < time.monotonic() - began < AT_MOST
    assert said.code == "ssh-unreachable" and said.phase == "key exchange"


def test_a_tarpit_that_drips_lines_costs_no_more_than_the_time_limit(client: Client) -> None:
    with listener(b"welcome\r\n" * 3, close=False) as (port, _):
        began = time.monotonic()
        failure(client.dialer(timeout=1.5), host(port=port))
        assert time.monotonic() - began < AT_MOST


def test_a_port_of_another_service_is_said_without_a_second_try(client: Client) -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n", close=True) as (port, calls):
        said = failure(client.dialer(), host(port=port))
    assert "HTTP/1.1 400" in said.reason and len(calls) == 1


@pytest.mark.parametrize(
    ("greeting", "word"),
    [
        (b"", "MaxStartups"),
        (b"Exceeded MaxStartups\r\n", "MaxStartups"),
        (b"Not allowed at this time\r\n", "Penalties"),
    ],
)
def test_an_sshd_that_drops_us_is_tried_again_until_the_time_is_over(
    client: Client, greeting: bytes, word: str
) -> None:
    with listener(greeting, close=True) as (port, calls):
        began = time.monotonic()
        said = failure(client.dialer(timeout=2), host(port=port))
        assert time.monotonic() - began < AT_MOST
    assert said.code == "ssh-throttled" and word in said.fix
    assert len(calls) > 2


def test_sixty_four_logins_at_once_all_get_in_though_sshd_drops_some(server: Sshd, client: Client) -> None:
    dialer = client.dialer()
    hosts = [host(server, name=f"gpu{n}") for n in range(64)]
    dialer.prepare(hosts)
    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(lambda each: works(dialer, each), hosts))
    # Without new tries this would be no test: sshd must have dropped some.
    assert server.log().count("drop connection") > 0


def test_one_bad_host_does_not_slow_the_others(server: Sshd, client: Client) -> None:
    dialer = client.dialer(timeout=8)
    with listener(b"", close=False) as (tarpit, _), ThreadPoolExecutor(16) as pool:
        slow = [pool.submit(failure, dialer, host(name=f"bad{n}", port=tarpit)) for n in range(3)]
        assert all(pool.map(lambda n: works(dialer, host(server, name=f"gpu{n}")), range(8)))
        assert not any(each.done() for each in slow)
        assert {each.result().code for each in slow} == {"ssh-unreachable"}


# --- what is not done -----------------------------------------------------------------------------------------------


def test_neither_agent_nor_display_is_forwarded_whatever_ssh_config_says(
    server: Sshd, client: Client, agent: Callable[..., str]
) -> None:
    client.configure("ForwardAgent yes", "ForwardX11 yes", f"IdentityFile {client.key}")
    connection = client.dialer(agent=agent(client.key)).connect(host(server))
    pipe = connection.open("echo agent=$SSH_AUTH_SOCK display=$DISPLAY tty=$SSH_TTY", 10)
    assert read_all(pipe).decode().split() == ["agent=", "display=", "tty="]
    connection.close()


def test_fabric_s_own_files_are_not_read(server: Sshd, client: Client, tmp_path: Path) -> None:
    (tmp_path / ".fabric.yml").write_text("user: mallory\nforward_agent: true\ngateway: nowhere\n")
    script = (
        "import sys\nfrom pathlib import Path\nfrom e2e.test_ssh_login import Client, host, works\n"
        "client = Client.__new__(Client)\nclient.config = Path(sys.argv[1])\n"
        "assert works(client.dialer(), host(port=int(sys.argv[2])))\n"
    )
    arguments = [sys.executable, "-c", script, str(client.config), str(server.port)]
    env = CHILD_ENV | {"HOME": str(tmp_path)}
    subprocess.run(arguments, cwd=tmp_path, env=env, check=True, timeout=60)


def test_a_failed_login_prints_nothing_and_keeps_no_process_alive(client: Client) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom e2e.test_ssh_login import Client, failure, host\n"
        "client = Client.__new__(Client)\nclient.config = Path(sys.argv[1])\n"
        "failure(client.dialer(timeout=1), host(port=int(sys.argv[2])))\n"
    )
    with listener(b"SSH-2.0-x\r\n", close=False) as (port, _):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", script, str(client.config), str(port)],
            env=CHILD_ENV,
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")
        assert time.monotonic() - began < 40


def test_known_hosts_are_read_once_for_many_hosts(
    server: Sshd, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read = KnownHosts.read

    def count(paths: Iterable[Path]) -> KnownHosts:
        reads.append(paths)
        return read(paths)

    monkeypatch.setattr(KnownHosts, "read", count)
    dialer = client.dialer()
    assert works(dialer, host(server)) and works(dialer, host(server, name="gpu2"))
    assert len(reads) == 1


def test_paramiko_is_imported_whole_by_whichever_thread_needs_it_first(server: Sshd, client: Client) -> None:
    script = (
        "import sys, threading\nfrom pathlib import Path\nfrom e2e.test_ssh_login import Client, host, works\n"
        "client = Client.__new__(Client)\nclient.config = Path(sys.argv[1])\n"
        "assert 'paramiko' not in sys.modules\n"
        "named = [None, sys.argv[2]] * 4\n"
        "hosts = [host(name=f'h{n}', port=int(sys.argv[3]), identity_file=key) for n, key in enumerate(named)]\n"
        "dialer = client.dialer()\n"
        "said = []\n"
        "ready = threading.Barrier(8)\n"
        "def work(one):\n    ready.wait()\n    said.append(works(dialer, one))\n"
        "threads = [threading.Thread(target=work, args=(one,)) for one in hosts]\n"
        "[one.start() for one in threads]\n[one.join() for one in threads]\n"
        "assert said == [True] * 8, said\n"
    )
    for _ in range(4):  # without a lock most trials failed
        arguments = [sys.executable, "-c", script, str(client.config), str(client.key), str(server.port)]
        subprocess.run(arguments, env=CHILD_ENV, check=True, timeout=60)
