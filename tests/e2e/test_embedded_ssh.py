"""The demo's hosts seen by OpenSSH's client: an SSH server like any other, for one key and for commands only."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.demo import two_hosts

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the demo's hosts are this machine, and hosts run Linux"),
    pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="the OpenSSH client is not installed"),
]


class Hosts:
    """The program that has the two hosts."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.demo.two_hosts"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.folder = Path(self.process.stdout.readline().rstrip("\n"))

    def argv(self, *arguments: str) -> list[str]:
        return ["ssh", "-F", str(self.folder / "ssh_config"), "-o", "BatchMode=yes", *arguments]

    def ssh(self, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.argv(*arguments), input=data, capture_output=True, timeout=60)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    yield hosts
    hosts.close()


def test_command_runs_with_its_streams_and_exit_status(hosts: Hosts) -> None:
    done = hosts.ssh("demo-a", "cat; echo wrong >&2; exit 7", data=b"in\0put")
    assert (done.stdout, done.stderr, done.returncode) == (b"in\0put", b"wrong\n", 7)


def test_megabytes_arrive_byte_for_byte(hosts: Hosts) -> None:
    data = os.urandom(8 << 20)
    assert hosts.ssh("demo-b", "cat", data=data).stdout == data


def test_each_host_has_an_environment_and_folders_of_its_own(hosts: Hosts) -> None:
    outputs = [
        hosts.ssh(name, "echo $HOME $DDP_ORCH_STATE_DIR $TMPDIR; pwd").stdout.split() for name in two_hosts.HOSTS
    ]
    for name, output in zip(two_hosts.HOSTS, outputs, strict=True):
        home = hosts.folder / name
        assert output == [str(path).encode() for path in (home, home / "state", home / "tmp", home)]
    assert b"PYTEST" not in hosts.ssh("demo-a", "env").stdout


def test_another_key_and_another_user_are_refused(hosts: Hosts, tmp_path: Path) -> None:
    other = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    config = (hosts.folder / "ssh_config").read_text().replace(str(hosts.folder / "id_ecdsa"), str(other))
    (tmp_path / "ssh_config").write_text(config)
    refused = subprocess.run(
        ["ssh", "-F", tmp_path / "ssh_config", "-o", "BatchMode=yes", "demo-a", "id"], capture_output=True
    )
    assert refused.returncode == 255 and b"Permission denied (publickey)" in refused.stderr
    refused = hosts.ssh("-l", "root", "demo-a", "id")
    assert refused.returncode == 255 and b"Permission denied (publickey)" in refused.stderr


@pytest.mark.parametrize("arguments", [("demo-a",), ("-s", "demo-a", "sftp"), ("-W", "127.0.0.1:22", "demo-a")])
def test_nothing_but_commands_is_served(hosts: Hosts, arguments: tuple[str, ...]) -> None:
    refused = hosts.ssh(*arguments)
    assert refused.returncode == 255 and not refused.stdout, refused


def test_servers_listen_on_this_machine_only(hosts: Hosts) -> None:
    ports = [int(line.split()[1]) for line in (hosts.folder / "ssh_config").read_text().splitlines() if "Port" in line]
    for port in ports:
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), 5)


def test_client_that_goes_away_ends_the_commands_stdin_and_no_more(hosts: Hosts, tmp_path: Path) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    argv = hosts.argv("demo-a", f"echo > {started}; cat; echo survived > {ended}")
    client = subprocess.Popen(argv, stdin=subprocess.PIPE)
    wait_until(started.exists, 20, "the command has started")
    client.kill()
    client.wait()
    wait_until(lambda: ended.exists() and ended.read_text() == "survived\n", 20, "the command ran to its end")


def test_what_was_daemonised_on_a_host_ends_with_the_hosts() -> None:
    hosts = Hosts()
    assert (
        hosts.ssh("demo-a", "setsid sh -c 'sleep 1000 & exec sleep 1000' </dev/null >/dev/null 2>&1 &").returncode == 0
    )
    wait_until(lambda: sum("sleep\0001000" in line for line in _of(hosts.folder)) == 2, 20, "both sleep")
    hosts.close()
    assert not _of(hosts.folder) and not hosts.folder.exists()


def test_folder_that_ssh_config_would_have_to_quote_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/home/ann/my files")
    assert two_hosts._place() == "/tmp"


def _of(folder: Path) -> list[str]:
    """Command lines of the processes that run on a host."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"HOME={folder}/".encode() in entry.read_bytes():
                found.append((entry.parent / "cmdline").read_text())
    return found
