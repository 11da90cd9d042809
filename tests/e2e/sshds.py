"""Real sshds on 127.0.0.1 for tests of the login: each with a folder, keys and a configuration of its own.

They run as the user of the tests and log that user in; nothing of the user's own ~/.ssh is read or written.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.waiting import wait_until

from orchestrator.inventory.model import Host, SshOptions
from orchestrator.node.host import processes
from orchestrator.ssh.dialer import Dialer
from orchestrator.ssh.pipe import Pipe

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
USER = getpass.getuser()


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)], check=True)
    return path


def public(key: Path) -> str:
    """Type and key, without the comment."""
    return " ".join(key.with_name(key.name + ".pub").read_text().split()[:2])


@dataclass
class Sshd:
    """A running sshd, and the folder it lives in."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def host_key(self) -> Path:
        return self.directory / "host_ed25519"

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def sessions(self) -> int:
        return self.log().count("Accepted publickey")

    def children(self) -> list[int]:
        """The processes of its connections: one each for root, two for anybody else."""
        return [one.pid for one in processes.descendants(self.process.pid)]

    def known_line(self, key: Path | None = None) -> str:
        return f"[127.0.0.1]:{self.port} {public(key or self.host_key)}\n"


@contextlib.contextmanager
def sshd(directory: Path, authorized: Path, *options: str, kinds: tuple[str, ...] = ("ed25519",)) -> Iterator[Sshd]:
    """Start an sshd that lets the holder of `authorized` in; `options` are lines of sshd_config and win."""
    assert SSHD
    directory.mkdir(parents=True)
    keys = [make_key(directory / f"host_{kind}", kind) for kind in kinds]
    (directory / "authorized_keys").write_text(public(authorized) + "\n")
    # Bound here, and passed on free: sshd cannot say which port it got.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = [
        *options,
        "ListenAddress 127.0.0.1",
        f"Port {port}",
        *(f"HostKey {key}" for key in keys),
        f"AuthorizedKeysFile {directory}/authorized_keys",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "LogLevel VERBOSE",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "SetEnv SHLVL=2",  # bash takes itself for a subshell then, and leaves the user's ~/.bashrc alone
    ]
    (directory / "sshd_config").write_text("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists, as root
    process = subprocess.Popen([SSHD, "-D", "-f", str(directory / "sshd_config"), "-E", str(directory / "log")])
    server = Sshd(directory, port, process)
    try:
        wait_until(lambda: (directory / "log").exists() and "Server listening" in server.log(), 10, "sshd listens")
        yield server
    finally:
        process.kill()
        process.wait(10)


class Client:
    """A user's side: a key, a known_hosts and an ssh_config in a folder."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.key = make_key(directory / "id_ed25519")
        self.known_hosts = directory / "known_hosts"
        self.config = directory / "config"
        self.known_hosts.write_text("")
        self.configure(f"IdentityFile {self.key}")

    def configure(self, *lines: str) -> None:
        """Replace ssh_config; these lines come first, and the first value wins."""
        files = f"UserKnownHostsFile {self.known_hosts}\nGlobalKnownHostsFile none\n"
        self.config.write_text("\n".join(lines) + "\n\nHost *\n" + files)

    def trust(self, *lines: str) -> None:
        self.known_hosts.write_text("".join(lines))

    def dialer(
        self, *, host_keys: str = "strict", timeout: float = 20, agent: str | None = None, ask: object = None
    ) -> Dialer:
        options = SshOptions(via="paramiko", host_keys=host_keys, connect_timeout=timeout, parallel=64, jump_parallel=8)  # type: ignore[arg-type]
        return Dialer(options, config_file=self.config, agent_socket=agent, ask_passphrase=ask)  # type: ignore[arg-type]


def host(server: Sshd | None = None, **keys: object) -> Host:
    """A host of an inventory; the address and port of `server`, unless `keys` say otherwise."""
    values: dict[str, object] = {
        "name": "gpu1",
        "address": "127.0.0.1",
        "user": None,
        "port": server.port if server else None,
        "identity_file": None,
        "proxy_jump": None,
        "via": "paramiko",
        "cluster_address": None,
        "interface": "auto",
        "gpus": "auto",
        "nproc_per_node": "auto",
        "python": "python3",
        "setup": (),
        "workdir": None,
        "state_dir": None,
        "container": "none",
        "env": {},
        "spare": False,
    }
    return Host(**(values | keys))  # type: ignore[arg-type]


def read_all(pipe: Pipe, timeout: float = 20) -> bytes:
    data = bytearray()
    while part := pipe.recv(1 << 16, timeout):
        data += part
    return bytes(data)
