"""Facts of this host from files of its kernel: disks, limits, network cards, ports, leftovers."""

import glob
import os
import shutil
import socket
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional

from ..host import memory_folder, network, processes, state
from ..host.run_command import answers_of, output_of
from ..host.small_files import text_of
from . import dns

NFT_WINDOW = 3.0  # s
UNITS = "/run/systemd/units"  # of systemd: a link for each unit that is active
FILES_WINDOW = 5.0  # s for all questions to file systems: the file system of a dead server never answers
STALE_LOCK = 300.0  # s after which the lock of a build of an extension counts as left behind


def space(path: str) -> Optional[Dict[str, Any]]:
    """The space on the disk of `path`, or of its nearest existing parent, in bytes. None if it cannot be asked."""
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    try:
        filesystem = os.statvfs(path)
    except OSError:
        return None
    kind = state.filesystem(path)
    free = filesystem.f_bavail * filesystem.f_frsize
    return {
        "path": path,
        "kind": kind,
        "shared": kind in state.SHARED_FILESYSTEMS,
        "total": filesystem.f_blocks * filesystem.f_frsize,
        "free": min(free, memory_folder.free()) if path == memory_folder.SHM else free,
        "free_files": filesystem.f_favail if filesystem.f_files else None,
    }


def files(paths: List[str], workdir: Optional[str]) -> Dict[str, Any]:
    """What file systems tell: disks, paths (why each cannot be read), whether workdir is a folder, stale_locks.

    `hung`: the paths that have not answered within FILES_WINDOW; they are in none of the others.
    """
    places = {"state": state.base(), "home": os.path.expanduser("~"), "tmp": "/tmp", "shm": "/dev/shm"}
    questions: Dict[str, Callable[[], Any]] = {"stale_locks": stale_locks}
    questions.update({"disk " + name: partial(space, path) for name, path in places.items()})
    questions.update({"path " + path: partial(unreadable, path) for path in paths})
    if workdir is not None:
        questions["workdir"] = partial(os.path.isdir, workdir)
    answers = answers_of(questions, FILES_WINDOW)
    where = {"stale_locks": _extensions(), "workdir": str(workdir)}
    where.update({"disk " + name: path for name, path in places.items()})
    where.update({"path " + path: path for path in paths})
    disks = {name: answers.get("disk " + name) for name in places}
    return {
        "disks": {name: disk_space for name, disk_space in disks.items() if disk_space is not None},
        "paths": {path: answers.get("path " + path) for path in paths},
        "workdir": answers.get("workdir", True) if workdir is not None else None,
        "stale_locks": answers.get("stale_locks", []),
        "hung": sorted({where[name] for name in questions if name not in answers}),
    }


def interfaces() -> List[Dict[str, Any]]:
    rows = []
    for interface in network.interfaces():
        mtu = text_of("/sys/class/net/%s/mtu" % interface.name)
        rows.append(dict(interface._asdict(), mtu=int(mtu) if mtu.isdigit() else None))
    return rows


def firewalls() -> List[str]:
    """`ufw`, `firewalld`, `iptables`, and `nft TABLE CHAIN` for each chain that filters input.

    Only root may read the kernel's rules. Others read the file they may have been loaded from: `nft-file TABLE CHAIN`.
    """
    active = []
    if "ENABLED=yes" in text_of("/etc/ufw/ufw.conf").replace(" ", ""):
        active.append("ufw")
    if os.path.exists("/run/firewalld") or os.path.exists("/run/firewalld.pid"):
        active.append("firewalld")
    chains = ["nft " + chain for chain in input_chains(_nft_chains())]
    chains = chains or ["nft-file " + chain for chain in input_chains(_nft_file())]
    if not chains and _program("iptables"):
        return active + ["iptables"]
    return active + chains


def input_chains(text: str) -> List[str]:
    """[`inet filter input`], from `nft list` or /etc/nftables.conf: those whose policy is to drop, else all of them."""
    every, dropping, table, chain = [], [], "", ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["table"]:
            table = " ".join(words[1:]).rstrip(" {")
        elif words[:1] == ["chain"]:
            chain = words[1]
        elif words[:4] == ["type", "filter", "hook", "input"]:
            every.append("%s %s" % (table, chain))
            if "policy drop" in line:
                dropping.append(every[-1])
    return dropping or every


def _nft_chains() -> str:
    program = _program("nft")
    if os.getuid() != 0 or program is None:
        return ""
    return output_of([program, "list", "chains"], NFT_WINDOW)


def _nft_file() -> str:
    """What the kernel's rules are loaded from; "" if systemd has not loaded it."""
    has_systemd = os.path.isdir(UNITS)
    if has_systemd and not os.path.lexists(os.path.join(UNITS, "invocation:nftables.service")):
        return ""
    return text_of("/etc/nftables.conf")


def _program(name: str) -> Optional[str]:
    """Where it is; the folders of root's programs are not in everybody's PATH."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def port_range(text: str) -> List[int]:
    """From ip_local_port_range: what a socket gets that asks for no port, as those of NCCL and gloo."""
    numbers = [int(word) for word in text.split() if word.isdigit()]
    return numbers[:2] if len(numbers) >= 2 else [32768, 60999]


def listeners(ports: List[int]) -> Dict[str, Any]:
    """Who listens on these ports: {port: {pid, command}}; pid null when it is another user's."""
    holders: Dict[str, Any] = {}
    for port, inode in network.listeners(ports).items():
        pid = network.holder(inode)
        holders[str(port)] = {"pid": pid, "command": processes.command(pid)[:200] if pid else None}
    return holders


def orphans() -> List[Dict[str, Any]]:
    """Processes with our mark whose run has no guard here."""
    marks = processes.marks()
    if not marks:
        return []
    guarded = {run_id for run_id, folder in state.runs() if state.guarded(folder)}
    return [
        {"pid": process.pid, "run_id": run_id, "command": processes.command(process.pid)[:200]}
        for process, run_id in sorted(marks.items())
        if run_id not in guarded
        # a run of another state folder: this machine plays several hosts
        and "ddp-guard" not in map(processes.name, processes.ancestors(process.pid))
    ]


def stale_locks() -> List[str]:
    """Locks of builds of torch extensions: a process that finds one waits for it silently."""
    root = _extensions()
    locks = []
    for path in glob.glob(root + "/*/lock") + glob.glob(root + "/*/*/lock"):
        try:
            if time.time() - os.stat(path).st_mtime > STALE_LOCK:
                locks.append(path)
        except OSError:
            continue  # just released
    return sorted(locks)


def _extensions() -> str:
    return os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")


def unreadable(path: str) -> Optional[str]:
    """Why it cannot be read."""
    if not os.path.exists(path):
        return "No such file or directory"
    return None if os.access(path, os.R_OK) else "Permission denied"


def gather(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """All of them. `arguments`: ports (a list), paths, workdir, names and addresses to look up."""
    own = socket.gethostname()
    return {
        "hostname": own,
        "cgroup_pids": _number(text_of("/sys/fs/cgroup/pids.max")),
        "interfaces": interfaces(),
        "rdma": network.rdma_ports(),
        "firewalls": firewalls(),
        "port_range": port_range(text_of("/proc/sys/net/ipv4/ip_local_port_range")),
        "first_port": _number(text_of("/proc/sys/net/ipv4/ip_unprivileged_port_start")) or 1024,
        "listeners": listeners(arguments["ports"]),
        "orphans": orphans(),
        "dns": dns.servers(text_of("/etc/resolv.conf")),
        **files(arguments["paths"], arguments["workdir"]),
    }


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None
