"""One host of a lab: commands in it, a look at its processes, and what can happen to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import links, memory, namespaces
from .processes import Process, of_run, read_processes
from .waiting import wait_until

if TYPE_CHECKING:
    from .lab import Lab

USERS: Mapping[str, int] = {"ann": 2001, "bob": 2002}
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# Nobody reads the requests for this FUSE file system, not even the first, INIT.
MOUNT_DEAD = """
import ctypes, os, sys, time
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if ctypes.CDLL(None, use_errno=True).mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
time.sleep(3600)
"""
SILENT_DNS = "10.77.255.53"  # takes every query and answers none


def address(network: int, index: int) -> str:
    """Of host `index` on network 10.`network`.0.0/16."""
    return f"10.{network}.{index // 250}.{index % 250 + 1}"


class Host:
    """A host with a power switch. Made by Lab; `ann` is the ordinary user that everything runs as."""

    def __init__(self, lab: Lab, index: int, shell: str) -> None:
        self.lab = lab
        self.name = f"node-{index}"
        self.address = address(77, index)
        self.cluster_address = address(78, index)
        self.python = lab.python
        self.directory = lab.directory / self.name
        self.homes = lab.directory / "homes" if lab.shared_home else self.directory / "disk/home"
        self.home = self.homes / "ann"
        # Interface names differ from host to host, as they do in the field.
        self.links = {
            links.SSH: links.Link(links.SSH, f"ssh{index}", "eth0"),
            links.CLUSTER: links.Link(links.CLUSTER, f"cluster{index}", ("eth1", "ens9")[index % 2]),
        }
        self._shell = shell
        self._init = 0
        self._unshare: subprocess.Popen[str] | None = None
        self.started: list[subprocess.Popen[str]] = []
        self._disks: list[str] = []
        self._memory: Path | None = None
        self._install()

    # --- commands -----------------------------------------------------------------------------------------------

    def sh(
        self, command: str, user: str = "ann", *, input: str | None = None, timeout: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` by /bin/sh inside the host, not through its sshd. With `check`, raise when it fails."""
        return self.run(["/bin/sh", "-c", command], user, input=input, timeout=timeout, check=check)

    def run(
        self,
        argv: Sequence[str],
        user: str = "ann",
        *,
        input: str | None = None,
        timeout: float = 60,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """As `sh`, without a shell."""
        process = self.popen(argv, user, **namespaces.pipes(input), **options)
        return namespaces.run(process, input, timeout, check)

    def popen(
        self, argv: Sequence[str], user: str = "ann", *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start `argv` inside the host; the Popen is the process itself. It dies with the host."""
        home = "/root" if user == "root" else f"/home/{user}"
        process = namespaces.popen(
            self.init,
            argv,
            env={"HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "PATH": PATH} | dict(env or {}),
            cwd=home,
            uid=USERS.get(user, 0),
            **options,
        )
        self.started = [p for p in self.started if p.returncode is None] + [process]
        return process

    @property
    def init(self) -> int:
        """The host's pid 1, by its pid outside."""
        if not self._init:
            raise RuntimeError(f"{self.name} is down")
        return self._init

    @property
    def is_up(self) -> bool:
        return self._unshare is not None

    @property
    def root(self) -> Path:
        """The host's / seen from outside; gone with the host. (An absolute symlink in it leads outside.)"""
        return Path(f"/proc/{self.init}/root")

    # --- processes ----------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        return read_processes(self.root / "proc")

    def marked(self, run_id: str | None = None) -> list[Process]:
        """The processes of run `run_id`, or of any run; a host that is down has none."""
        return of_run(self.processes(), run_id) if self._init else []

    # --- power --------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Cut the power: every process is gone at once, /home and /var/tmp stay, nobody is told."""
        assert self._unshare is not None
        self.heal()
        self.cut()  # or the kernel would close its connections, and say so to the others
        os.kill(self.init, signal.SIGKILL)
        # A process table ends when the last of its dead is buried, and some of them are our children.
        for process in [*self.started, self._unshare]:
            process.wait(10)
        self._init, self._unshare, self.started, self._disks = 0, None, [], []
        self._unlimit_memory()
        # The kernel takes a dead network apart in its own time; the next boot needs the names now.
        commands = "".join(f"link delete {link.port}\n" for link in self.links.values())
        self.lab.run(["ip", "-force", "-batch", "-"], input=commands)
        for link in self.links.values():
            link.cut = False
        self.lab.apply_cut_and_loss()

    def boot(self) -> None:
        """Turn the power on and wait for sshd. A new boot_id, the same disk."""
        self.power_on()
        wait_until_up([self])
        # Who asked for this host in vain while it was down would believe for some seconds more that it is.
        self.lab.forget_neighbours()

    def power_on(self) -> None:
        """The first half of `boot`; the second is wait_until_up."""
        assert self._unshare is None, f"{self.name} is on already"
        if self.lab.own_ids:
            (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        ssh, cluster = self.links[links.SSH], self.links[links.CLUSTER]
        with (self.directory / "boot.log").open("w") as log, self.lab.network_fd() as network:
            self._unshare = self.lab.popen(
                [*namespaces.UNSHARE, "bash", Path(__file__).with_name("host.sh")],
                env={
                    "PATH": PATH,
                    "LAB": str(self.lab.directory),
                    "LAB_NETWORK": f"/proc/self/fd/{network}",
                    "HOST": str(self.directory),
                    "HOME_DISK": str(self.homes),
                    "NAME": self.name,
                    "ADDRESS": self.address,
                    "CLUSTER_ADDRESS": self.cluster_address,
                    "SSH_NIC": ssh.interface,
                    "SSH_PORT": ssh.port,
                    "SSH_MAC": _mac(self.address),
                    "CLUSTER_NIC": cluster.interface,
                    "CLUSTER_PORT": cluster.port,
                    "CLUSTER_MAC": _mac(self.cluster_address),
                    "SSHD": self.lab.sshd,
                    "SHARED_PATHS": self.lab.shared_paths,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[network],
            )

    def has_booted(self) -> bool:
        """Is it wired and sshd listening? RuntimeError with what the host said, if it died on the way."""
        assert self._unshare is not None
        if self._unshare.poll() is not None:
            raise RuntimeError(f"{self.name} did not boot:\n{(self.directory / 'boot.log').read_text()}")
        return bool(self._init) and self._sshd_listens() and all(map(self.lab.is_wired, self.links.values()))

    # --- network ------------------------------------------------------------------------------------------------

    def cut(self, *networks: str) -> None:
        """Silence, both ways, on these networks ("ssh", "cluster"; default both). No carrier is lost, no error seen."""
        for link in self._links(networks):
            link.cut = True
        self.lab.apply_cut_and_loss()

    def loss(self, percent: int, *networks: str) -> None:
        """Drop so many of the frames of each direction, at random."""
        for link in self._links(networks):
            link.loss = percent
        self.lab.apply_cut_and_loss()

    def rate(self, rate: str, *networks: str) -> None:
        """Limit each direction, in tc's words: "10mbit"."""
        for link in self._links(networks):
            links.set_rate(link, rate, self.lab.root_run, self.root_run)

    def delay(self, milliseconds: float, *networks: str) -> None:
        """Hold every frame, in each direction, for so long: the round trip grows by twice that."""
        for link in self._links(networks):
            links.end_delay(link, self.lab.root_run)
            links.start_delay(link, milliseconds, self.lab.root_popen)

    def heal(self, *networks: str) -> None:
        """End cut, loss, rate and delay."""
        for link in self._links(networks):
            link.cut, link.loss = False, 0
            links.end_delay(link, self.lab.root_run)
            links.set_rate(link, None, self.lab.root_run, self.root_run)
        self.lab.apply_cut_and_loss()

    def slow_dns(self) -> None:
        """From now on every name that is not in /etc/hosts is asked of a server that never answers."""
        self._write_etc("resolv.conf", f"nameserver {SILENT_DNS}\n")

    def no_dns(self) -> None:
        """The default: names that are not in /etc/hosts are unknown, at once."""
        self._write_etc("resolv.conf", "# no name server: 127.0.0.1, where nobody listens\n")

    def _links(self, networks: Sequence[str]) -> list[links.Link]:
        return [self.links[network] for network in networks or links.NETWORKS]

    def root_run(self, argv: Sequence[str], input: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(argv, "root", input=input, check=True)

    # --- sshd ---------------------------------------------------------------------------------------------------

    def sshd_stop(self) -> None:
        """Stop listening; sessions stay, as when sshd is restarted."""
        self.sh("kill -9 $(cat /run/sshd.pid) && rm /run/sshd.pid", "root", check=True)

    def sshd_start(self) -> None:
        self.sh(f"{self.lab.sshd} -E /var/log/sshd.log", "root", check=True)
        wait_until(self._sshd_listens, 10, f"sshd of {self.name} listens")

    def sshd_kill_sessions(self) -> None:
        """kill -9 every process of sshd but the one that listens: all connections end without a word."""
        listener = int((self.root / "run/sshd.pid").read_text()) if self._sshd_listens() else 0
        sessions = [p.pid for p in self.processes() if p.argv and p.argv[0].startswith("sshd") and p.pid != listener]
        self._kill(sessions)

    def _kill_users(self) -> list[int]:
        """kill -9 what ann and bob run, in the hope that it was all; their pids."""
        pids = [p.pid for p in self.processes() if p.uid in USERS.values() and p.state != "Z"]
        self._kill(pids)
        return pids

    def _kill(self, pids: Sequence[int]) -> None:
        if pids:
            self.sh(f"kill -9 {' '.join(map(str, pids))}", "root")

    def _sshd_listens(self) -> bool:
        return (self.root / "run/sshd.pid").exists()  # written once it listens

    # --- disk ---------------------------------------------------------------------------------------------------

    def disk(self, path: str, size: str, user: str = "ann") -> None:
        """Mount an empty disk of `size` ("8m") over the folder `path`, made if need be, until the host goes down."""
        owner = f"uid={USERS[user]},gid={USERS[user]}"
        self.sh(f"mkdir -p {path}", user, check=True)
        self.sh(f"mount -t tmpfs -o size={size},mode=0700,{owner} disk {path}", "root", check=True)
        self._disks.append(path)

    @contextlib.contextmanager
    def hung(self, path: str) -> Iterator[None]:
        """Mount a file system over `path` whose server never answers, as NFS without its server: whoever uses it waits.

        At the end, all that wait get an error.
        """
        with self.popen([self.python, "-c", MOUNT_DEAD, path], "root", stdout=subprocess.PIPE) as server:
            assert server.stdout is not None and server.stdout.readline() == "mounted\n"
            try:
                yield
            finally:
                server.kill()
                if self.is_up:
                    self.root_run(["umount", "-l", path])

    def limit_memory(self, size: str) -> None:
        """All that runs on this host, and all that comes over ssh, shares `size` ("200m"): for more it is OOM-killed.

        Until the next boot or reset. What `sh` and `popen` start later is not limited: it is no child of the host's.
        """
        parent, limit = memory.parent_and_limit()
        self._memory = parent / f"{self.lab.directory.name}-{self.name}"
        self.sh(f"mkdir {self._memory} && echo {size} > {self._memory}/{limit}", "root", check=True)
        self._move_to(self._memory)

    def _unlimit_memory(self) -> None:
        if self._memory is None:
            return
        if self.is_up:
            self._move_to(self._memory.parent)
        group, self._memory = self._memory, None
        wait_until(lambda: memory.removed(group), 5, f"{group} is empty")

    def _move_to(self, group: Path) -> None:
        """Move every process to a control group; one may end meanwhile, which is no failure."""
        self.sh(f"for p in /proc/[0-9]*; do echo ${{p##*/}} > {group}/cgroup.procs; done 2> /dev/null", "root")

    def reset(self) -> None:
        """Make a running host as new: links healed, sshd on, users' processes ended, disks emptied."""
        self.heal()
        self.no_dns()
        self._unlimit_memory()
        wait_until(lambda: not self._kill_users(), 10, f"no process of a user is left on {self.name}")
        if not self._sshd_listens():
            self.sshd_start()
        for path in self._disks:
            self.root_run(["umount", "-l", path])
        self._disks = []
        self.sh("find /home /tmp /var/tmp /dev/shm /var/spool/cron/crontabs -xdev -mindepth 1 -delete", "root")
        self._make_homes()

    # --- how it is made -----------------------------------------------------------------------------------------

    def _install(self) -> None:
        for folder in ("root", "etc/ssh", "disk/home", "disk/var-tmp", "disk/crontabs"):
            (self.directory / folder).mkdir(parents=True)
        (self.directory / "disk/var-tmp").chmod(0o1777)
        if Path("/usr/bin/crontab").exists():  # it runs with the group that may write there
            os.chown(self.directory / "disk/crontabs", 0, Path("/usr/bin/crontab").stat().st_gid)
            (self.directory / "disk/crontabs").chmod(0o1730)
        self._write_etc("hostname", f"{self.name}\n")
        self._write_etc("hosts", self.lab.hosts_file)
        self._write_etc("passwd", self.lab.passwd(self._shell))
        self._write_etc("group", self.lab.group)
        self._write_etc("shadow", self.lab.shadow)
        for name in ("subuid", "subgid"):
            self._write_etc(name, "ann:100000:65536\n")
        self.no_dns()
        if self.lab.own_ids:
            self._write_etc("machine-id", f"{uuid.uuid4().hex}\n")
        self.host_key = self.lab.make_key(self.directory / "etc/ssh/ssh_host_ed25519_key")
        self._write_etc("ssh/sshd_config", self.lab.sshd_config)
        self._make_homes()

    def _make_homes(self) -> None:
        for user, uid in USERS.items():
            home = self.homes / user
            if home.exists():
                continue  # shared by all hosts, and made by the first
            (home / ".ssh").mkdir(parents=True)
            (home / ".ssh/authorized_keys").write_text(self.lab.authorized_keys)
            home.chmod(0o700)
            for path in (home, home / ".ssh", home / ".ssh/authorized_keys"):
                os.chown(path, uid, uid)

    def _write_etc(self, name: str, text: str) -> None:
        """Write in place: the file is bind-mounted in the running host."""
        (self.directory / "etc" / name).write_text(text)


def wait_until_up(hosts: Sequence[Host]) -> None:
    """Wait until these hosts, just powered on, have a process table and an sshd that listens."""

    def all_up() -> bool:
        if without_init := {host._unshare.pid: host for host in hosts if host._unshare and not host._init}:
            for parent, child in namespaces.children_of(set(without_init)).items():
                without_init[parent]._init = child
        return all(host.has_booted() for host in hosts)

    wait_until(all_up, 60, "all hosts are up")


def _mac(address: str) -> str:
    """An Ethernet address that stays the same over a reboot, as a real card's does."""
    return "02:00:" + ":".join(f"{int(byte):02x}" for byte in address.split("."))
