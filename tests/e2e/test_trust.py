"""`trust` with real sshds: what is shown, what is added, and what never is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .sshds import SSHD, Client, Sshd, make_key, public, sshd

pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd on this machine")

ROOT = Path(__file__).resolve().parents[2]


def trust(client: Client, hosts: list[dict[str, object]], *options: str) -> subprocess.CompletedProcess[str]:
    inventory = client.config.with_name("inventory.yaml")
    inventory.write_text(yaml.safe_dump({"hosts": hosts}))
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "trust", str(inventory), *options],
        env=os.environ | {"PYTHONPATH": str(ROOT), "DDP_ORCH_SSH_CONFIG": str(client.config), "SSH_AUTH_SOCK": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def entry(server: Sshd, name: str, **more: object) -> dict[str, object]:
    return {"name": name, "address": "127.0.0.1", "port": server.port, **more}


def as_ssh_keygen(key: Path) -> str:
    """Bits and fingerprint."""
    done = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split()[:2])


def test_new_keys_are_shown_as_ssh_keygen_shows_them_and_added_with_yes(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    client.configure(f"IdentityFile {client.key}", "HashKnownHosts yes")
    with sshd(tmp_path / "one", client.key) as one, sshd(tmp_path / "two", client.key, kinds=("rsa",)) as two:
        hosts = [entry(one, "gpu1"), entry(two, "gpu2"), {"name": "me", "address": "localhost"}]
        asked = trust(client, hosts)
        assert asked.returncode == 4 and client.known_hosts.read_text() == ""
        first, second = asked.stdout.splitlines()
        assert first.split()[0] == "new" and as_ssh_keygen(one.host_key) in first and first.endswith("(ED25519)")
        assert as_ssh_keygen(two.directory / "host_rsa") in second and "gpu2" in second and second.endswith("(RSA)")
        assert re.search(r"\bgpu\[1-2\]: .*\bkey\b", asked.stderr)

        said = trust(client, hosts, "--yes")
        assert (said.returncode, said.stdout) == (0, asked.stdout), said.stderr
        assert "added 2 keys" in said.stderr
        lines = client.known_hosts.read_text().splitlines()
        assert [line[:3] for line in lines] == ["|1|", "|1|"] and public(one.host_key) in lines[0]

        again = trust(client, hosts)
        assert again.returncode == 0 and "ddp-orch check" in again.stderr, again.stderr
        assert "added" not in again.stderr
        assert [line.split()[0] for line in again.stdout.splitlines()] == ["known", "known"]
        assert client.known_hosts.read_text().splitlines() == lines
        assert one.sessions() == two.sessions() == 0  # keys are looked at without a login


def test_a_changed_and_a_revoked_key_are_never_added_but_others_are(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    old = make_key(tmp_path / "old")
    with (
        sshd(tmp_path / "one", client.key) as one,
        sshd(tmp_path / "two", client.key) as two,
        sshd(tmp_path / "three", client.key) as three,
    ):
        client.trust(one.known_line(old), f"@revoked * {public(two.host_key)}\n")
        result = trust(client, [entry(one, "gpu1"), entry(two, "gpu2"), entry(three, "gpu3")], "--yes")
        assert result.returncode == 4
        assert [line.split()[0] for line in result.stdout.splitlines()] == ["CHANGED", "REVOKED", "new"]
        assert "gpu1" in result.stderr and "HAS CHANGED" in result.stderr
        assert "revoked" in result.stderr
        known = client.known_hosts.read_text()
        assert public(one.host_key) not in known and known.count(public(two.host_key)) == 1
        assert public(three.host_key) in known


def test_behind_a_jump_host_that_wants_a_password_the_key_is_accepted_by_hand(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    options = "PasswordAuthentication yes", "AuthenticationMethods publickey,password"
    with sshd(tmp_path / "jump", client.key, *options) as jump, sshd(tmp_path / "one", client.key) as one:
        client.configure("Host bastion", "HostName 127.0.0.1", f"Port {jump.port}", f"IdentityFile {client.key}")
        client.trust(jump.known_line())
        refused = trust(client, [entry(one, "gpu1", proxy_jump="bastion", via="openssh")], "--yes")
        assert refused.returncode == 4
        assert f"`ssh -p {one.port} -J bastion 127.0.0.1`" in refused.stderr, refused.stderr
        assert "ssh.via" not in refused.stderr


def test_jump_hosts_are_asked_first_and_what_is_behind_one_only_when_it_is_trusted(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    with sshd(tmp_path / "jump", client.key) as jump, sshd(tmp_path / "one", client.key) as one:
        identity = [f"IdentityFile {client.key}"]
        client.configure("Host bastion", "HostName 127.0.0.1", f"Port {jump.port}", *identity)
        hosts = [entry(one, "gpu1", proxy_jump="bastion"), entry(jump, "login", identity_file=str(client.key))]
        asked = trust(client, hosts)
        assert asked.returncode == 4 and re.search(r"\bgpu1: .*\bjump host\b", asked.stderr), asked.stderr
        assert len(asked.stdout.splitlines()) == 1  # bastion and login are one sshd
        assert one.log().count("Connection from") == 0

        result = trust(client, hosts, "--yes")
        assert result.returncode == 0, result.stderr
        first, second = result.stdout.splitlines()
        assert as_ssh_keygen(jump.host_key) in first
        assert as_ssh_keygen(one.host_key) in second and "via bastion" in second
        assert (jump.sessions(), one.sessions()) == (1, 0)
        assert public(one.host_key) in client.known_hosts.read_text()


def test_a_host_that_is_not_reached_is_4_and_the_others_are_shown(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    with sshd(tmp_path / "one", client.key) as one:
        dead = {"name": "gpu2", "address": "127.0.0.1", "port": 1}
        result = trust(client, [entry(one, "gpu1"), dead], "--yes")
        assert result.returncode == 4 and "gpu2: connect" in result.stderr
        assert public(one.host_key) in client.known_hosts.read_text()


@pytest.mark.parametrize("count", [1, 2])
def test_the_commands_that_a_changed_key_is_told_with_work_as_they_are(tmp_path: Path, count: int) -> None:
    client = Client(tmp_path / "client")
    old = make_key(tmp_path / "old")
    with sshd(tmp_path / "one", client.key) as one, sshd(tmp_path / "two", client.key) as two:
        servers = (one, two)[:count]

        client.trust(*(server.known_line(old) for server in servers))
        hosts = [entry(server, f"gpu{number}") for number, server in enumerate(servers, 1)]
        refused = trust(client, hosts, "--yes")
        assert refused.returncode == 4 and refused.stderr.count("HAS CHANGED") == 1, refused.stderr
        remove, accept = re.findall("`([^`]+)`", refused.stderr)
        subprocess.run(["bash", "-c", remove], check=True, capture_output=True)
        assert client.known_hosts.read_text() == ""
        assert shlex.split(accept) == ["ddp-orch", "trust", str(client.config.with_name("inventory.yaml"))]
        accepted = trust(client, hosts, "--yes")
        assert accepted.returncode == 0, accepted.stderr


def test_a_changed_key_of_a_pattern_is_told_by_its_line_as_ssh_keygen_removes_none(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    with sshd(tmp_path / "one", client.key) as one:
        client.trust("# mine\n", f"[127.0.0.*]:{one.port} {public(make_key(tmp_path / 'old'))}\n")
        refused = trust(client, [entry(one, "gpu1")])
    assert f"delete line 2 of {client.known_hosts}" in refused.stderr and "ssh-keygen" not in refused.stderr


def test_a_host_that_a_command_reaches_has_no_key_to_trust(tmp_path: Path) -> None:
    client = Client(tmp_path / "client")
    with sshd(tmp_path / "one", client.key) as one:
        hosts = [entry(one, "gpu1", via="openssh"), {"name": "box", "via": "docker exec -i {host}"}]
        added = trust(client, hosts, "--yes")
        assert added.returncode == 0 and "box" in added.stderr
        assert client.known_hosts.read_text() == one.known_line()
