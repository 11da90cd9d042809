"""A lab: hosts on this one machine, and a machine for the controller beside them, in namespaces that die with us.

Nothing outside changes: networks, mounts and processes live in the lab's own namespaces, files in its own folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from . import links, namespaces
from .host import PATH, SILENT_DNS, USERS, Host, address, wait_until_up
from .processes import Process, of_run, read_processes

NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
CONTROLLER_ADDRESS = "10.77.255.254"
CHECKOUT = Path(__file__).resolve().parents[2]
TOOLS = ("unshare", "nsenter", "pivot_root", "mount", "ip", "tc", "nft", "bash", "sshd")


class Lab:
    """`n` hosts: `with Lab(3) as lab: lab.hosts[0].sh("hostname")`.

    shells: login shells of ann, one a host, repeated as needed ("bash", "zsh", "fish", "csh", ...).
    shared_home: one /home for all hosts, like NFS. ports: where each sshd listens. sshd_options: more of sshd_config.
    own_ids: each host has a machine-id and boot_id of its own, as real ones do; False: this machine's, as containers.
    """

    def __init__(
        self,
        n: int,
        *,
        shells: Sequence[str] = ("bash",),
        shared_home: bool = False,
        ports: Sequence[int] = (22,),
        sshd_options: Mapping[str, object] | None = None,
        own_ids: bool = True,
    ) -> None:
        self.shared_home = shared_home
        self.own_ids = own_ids
        self.python = sys.executable
        self.sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") or "sshd"
        # What hosts need of this machine to run our Python and our code; above all what a venv's symlinks lead to.
        paths = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]}
        self.shared_paths = " ".join(sorted(map(str, paths)))
        self.directory = Path(tempfile.mkdtemp(prefix="ddp-orch-lab-"))
        self._shells = [shutil.which(shells[i % len(shells)], path=PATH) or shells[i % len(shells)] for i in range(n)]
        self._ports = ports
        self._sshd_options = dict(sshd_options or {})
        self._cut_paths: set[tuple[str, str]] = set()  # pairs of addresses
        self._started: list[subprocess.Popen[str]] = []
        self._unshare: subprocess.Popen[str] | None = None
        self._init = 0
        try:
            self._install(n)
        except BaseException:
            shutil.rmtree(self.directory)
            raise

    def __enter__(self) -> Lab:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- the controller -----------------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        input: str | None = None,
        timeout: float = 60,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` on the controller's machine: its HOME, its network, no way out of the lab."""
        return namespaces.run(self.popen(argv, **namespaces.pipes(input), **options), input, timeout, check)

    def popen(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start `argv` on the controller's machine; the Popen is the process itself. `env` adds to a clean one."""
        clean = {
            "HOME": str(self.controller_home),
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            "USER": "root",
            "LOGNAME": "root",
            "LANG": "C.UTF-8",
        }
        process = namespaces.popen(
            self.init, argv, env=clean | dict(env or {}), cwd=cwd or self.controller_home, uid=0, **options
        )
        self._started = [p for p in self._started if p.returncode is None] + [process]
        return process

    @property
    def controller_home(self) -> Path:
        """Holds the .ssh of the lab's user: key, config, known_hosts with every host's key."""
        return self.directory / "controller"

    def inventory(self, *, name: str = "inventory.yaml", cluster_addresses: bool = False, **overrides: Any) -> Path:
        """Write an inventory of all hosts; `overrides` are its top-level keys (run={...}, hosts=[...], ...)."""
        hosts = []
        for host in self.hosts:
            hosts.append({"name": host.name, "address": host.address})
            if cluster_addresses:
                hosts[-1]["cluster_address"] = host.cluster_address
        document: dict[str, Any] = {"hosts": hosts, "defaults": {"user": "ann", "python": self.python}}
        document.update(overrides)
        path = self.controller_home / name
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    # --- what is left -------------------------------------------------------------------------------------------

    def marked(self, run_id: str | None = None) -> dict[str, list[Process]]:
        """The processes of run `run_id`, or of any run, by host; the controller's machine counts as one."""
        found = {host.name: host.marked(run_id) for host in self.hosts}
        found["controller"] = of_run(self._controller_processes(), run_id)
        return {name: some for name, some in found.items() if some}

    def reset(self) -> None:
        """Make all as new for the next test: hosts up, links healed, sshd on, users' processes ended, homes emptied."""
        pids = [str(p.pid) for p in self._controller_processes() if p.pid != 1]
        self.run(["/bin/sh", "-c", f"kill -9 {' '.join(pids)}"])
        self.heal_paths()
        down = [host for host in self.hosts if not host.is_up]
        for host in down:
            host.power_on()
        wait_until_up(down)
        if down:
            self.forget_neighbours()
        for host in self.hosts:
            host.reset()
        self._make_controller_home()

    def _controller_processes(self) -> list[Process]:
        """Not those of the hosts, though the lab's process table shows them too."""
        table = Path(f"/proc/{self.init}/root/proc")
        own = (table / "1/ns/pid").readlink()

        def is_ours(process: Process) -> bool:
            with contextlib.suppress(OSError):
                return (table / f"{process.pid}/ns/pid").readlink() == own
            return False

        # unshare: that is what a host lives in, started among us
        return [p for p in read_processes(table) if is_ours(p) and p.argv[:1] != ("unshare",)]

    # --- for hosts ----------------------------------------------------------------------------------------------

    @property
    def init(self) -> int:
        if not self._init:
            raise RuntimeError("the lab is not running: use it in a with statement")
        return self._init

    def root_popen(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        return self.popen(argv, **namespaces.pipes(None))

    def root_run(self, argv: Sequence[str], input: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(argv, input=input, check=True)

    def apply_cut_and_loss(self) -> None:
        wires = [link for host in self.hosts for link in host.links.values()]
        links.apply_cut_and_loss(wires, self._cut_paths, self.root_run)

    def cut_path(self, one: Host, other: Host) -> None:
        """Drop everything between two hosts, on both networks; all others reach both."""
        self._cut_paths |= {(one.address, other.address), (one.cluster_address, other.cluster_address)}
        self.apply_cut_and_loss()

    def heal_paths(self) -> None:
        self._cut_paths.clear()
        self.apply_cut_and_loss()

    def is_wired(self, link: links.Link) -> bool:
        """Does the bridge forward this link's frames? That comes a moment after the interfaces are up."""
        state = Path(f"/proc/{self.init}/root/sys/class/net/{link.port}/brport/state")
        return state.exists() and state.read_text() == "3\n"

    def forget_neighbours(self) -> None:
        for run in (self.root_run, *[host.root_run for host in self.hosts if host.is_up]):
            run(["ip", "neighbour", "flush", "all"])

    @contextlib.contextmanager
    def network_fd(self) -> Iterator[int]:
        """A descriptor of the network namespace that holds the bridges."""
        fd = os.open(f"/proc/{self.init}/ns/net", os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)

    # --- start and end ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with (self.directory / "lab.log").open("w") as log:
            self._unshare = subprocess.Popen(
                [*namespaces.UNSHARE, "--mount-proc", "bash", Path(__file__).with_name("lab.sh")],
                env={
                    "PATH": PATH,
                    "LAB": str(self.directory),
                    "CONTROLLER_ADDRESS": CONTROLLER_ADDRESS,
                    "SILENT_DNS": SILENT_DNS,
                    "SHARED_PATHS": self.shared_paths,
                    "BASE_PYTHON": os.path.realpath(sys.executable),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != "ready\n":
            raise RuntimeError(f"the lab did not start:\n{(self.directory / 'lab.log').read_text()}")
        self._init = namespaces.children_of({self._unshare.pid})[self._unshare.pid]
        _make_room_for_neighbours(len(self.hosts))
        for host in self.hosts:
            host.power_on()
        wait_until_up(self.hosts)

    def close(self) -> None:
        """End every process of the lab and remove its folder."""
        if self._unshare is not None:
            assert self._unshare.stdin is not None and self._unshare.stdout is not None
            self._unshare.stdin.close()  # what lab.sh waits for
            # A process table ends when the last of its dead is buried, and some of them are our children.
            started = [p for host in self.hosts for p in host.started]
            for process in [*started, *self._started, self._unshare]:
                process.wait(30)
            self._unshare.stdout.close()
            self._unshare, self._init = None, 0
        shutil.rmtree(self.directory)

    def _install(self, n: int) -> None:
        self.hosts_file = f"127.0.0.1 localhost\n::1 localhost\n{CONTROLLER_ADDRESS} controller\n"
        self.hosts_file += "".join(f"{address(77, i)} node-{i}\n" for i in range(n))
        self.group = _with_users("/etc/group", "{user}:x:{uid}:\n")
        self.shadow = "root:*:19000:0:99999:7:::\n" + "".join(f"{user}:*:19000:0:99999:7:::\n" for user in USERS)
        self.sshd_config = "".join(f"{key} {value}\n" for key, value in self._sshd_options.items())
        self.sshd_config += "".join(f"Port {port}\n" for port in self._ports)
        self.sshd_config += "HostKey /etc/ssh/ssh_host_ed25519_key\nPasswordAuthentication no\nPidFile /run/sshd.pid\n"
        (self.directory / "root").mkdir()
        etc = self.directory / "controller.etc"
        etc.mkdir()
        (etc / "hosts").write_text(self.hosts_file)
        # ssh takes the home of the user from here, not from $HOME.
        (etc / "passwd").write_text(
            f"root:x:0:0:root:{self.controller_home}:/bin/bash\n"
            + "".join(line for line in Path("/etc/passwd").read_text().splitlines(True) if line[:5] != "root:")
        )
        self._key = self.directory / "id_ed25519"
        self.authorized_keys = self.make_key(self._key) + "\n"
        self.hosts = [Host(self, i, shell) for i, shell in enumerate(self._shells)]
        self._make_controller_home()

    def passwd(self, shell: str) -> str:
        return _with_users("/etc/passwd", f"{{user}}:x:{{uid}}:{{uid}}::/home/{{user}}:{shell}\n")

    def make_key(self, path: Path) -> str:
        """Make an Ed25519 key pair at `path` and `path`.pub; the public line."""
        key = Ed25519PrivateKey.generate()
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        path.chmod(0o600)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        path.with_name(f"{path.name}.pub").write_text(f"{public}\n")
        return public

    def _make_controller_home(self) -> None:
        if self.controller_home.exists():
            shutil.rmtree(self.controller_home)
        ssh = self.controller_home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        shutil.copy(self._key, ssh / "id_ed25519")
        shutil.copy(self._key.with_name("id_ed25519.pub"), ssh / "id_ed25519.pub")
        (ssh / "config").write_text("Host node-*\n    User ann\n")
        known = []
        for host in self.hosts:
            for name in (host.name, host.address, host.cluster_address):
                known += [f"{name if port == 22 else f'[{name}]:{port}'} {host.host_key}\n" for port in self._ports]
        (ssh / "known_hosts").write_text("".join(known))


def _make_room_for_neighbours(hosts: int) -> None:
    """The kernel's table of neighbours is one for all network namespaces, and by default too small for many hosts: the
    controller, the head and each other host know each other on two networks."""
    needed = 16 * hosts
    if needed > int(NEIGHBOURS.read_text()):
        with contextlib.suppress(OSError):  # read-only in a container: fewer hosts will do
            NEIGHBOURS.write_text(str(needed))


def missing() -> str | None:
    """Why no lab can be had on this machine, or None."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "it needs root"
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if absent:
        return f"these programs are not installed: {', '.join(absent)}"
    try:
        with Lab(1):
            return None
    except (OSError, RuntimeError, AssertionError) as error:
        return f"a lab of one host does not start: {error}"


def _with_users(path: str, line: str) -> str:
    """The machine's own passwd or group, with the lab's users in place of any that had their names or numbers."""
    kept = []
    for entry in Path(path).read_text().splitlines(True):
        fields = entry.split(":")
        if fields[0] not in USERS and fields[2] not in map(str, USERS.values()):
            kept.append(entry)
    return "".join(kept) + "".join(line.format(user=user, uid=uid) for user, uid in USERS.items())
