"""Leftovers of ended runs on this host. They are removed if they are provably ours; others are only reported."""

import os
import re
import signal
import time
from typing import Any, Dict, List, Set, Tuple

from ..guard import warm
from ..host import containers, memory_folder, network, processes, state
from ..host.sweep import belonging, sweep
from . import at_boot, gpus

SHARED_MEMORY = "/dev/shm"
# what NCCL and torch's data loaders leave there when they are killed; nothing else is ours for certain
LEFT_IN_MEMORY = re.compile(r"(nccl-[A-Za-z0-9]{6}|torch_[0-9]+_[0-9]+_[0-9]+)$")
FORCE_GRACE = 5.0  # s between TERM and KILL of a process that was named with --force
KILL_WINDOW = 5.0  # s after KILL


def stale(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """End every process with the mark of a run that has no guard, and remove what it left behind.

    `arguments`: ports (the fixed ones that the inventory wants); warm (optional): whether to end preloaders that wait
    for another run. `holders` of the answer are other people's processes on those ports and on the GPUs.
    """
    at_boot.clean()
    killed: List[Dict[str, Any]] = []
    remaining: List[Dict[str, Any]] = []
    removed: List[Dict[str, Any]] = []  # containers
    ports: List[int] = []
    memory: List[str] = []
    held_gpus = _gpu_processes()
    for run_id, folder in _dead_runs():
        before = {process: processes.command(process.pid) for process in belonging(run_id, folder)}
        held = ports_of(folder)
        ids = containers.find(folder)
        left = sweep(run_id, folder)
        memory += memory_folder.remove_left(state.read(os.path.join(folder, "spec.json")) or {})
        killed += [
            {"pid": process.pid, "cmd": command} for process, command in before.items() if not processes.alive(process)
        ]
        removed += removed_containers(folder, ids, left)
        remaining += [describe_left(each) for each in left]
        ports += [port for port in held if port not in network.listeners(held)]
    killed += _end_warm() if arguments.get("warm") else []
    gone = {process["pid"] for process in killed}
    return {
        "killed": killed,
        "ports_freed": ports,
        "gpus_freed": sorted({index for index, pid in held_gpus if pid in gone}),
        "remaining": remaining,
        "containers": removed,
        "memory_freed": memory + memory_folder.remove_strays() + _clear_shared_memory(),
        "holders": _holders([int(port) for port in arguments["ports"]], held_gpus),
    }


def describe_left(item: Dict[str, Any]) -> Dict[str, Any]:
    """A process or container that sweep() could not end, as an answer lists it."""
    why = "cannot be removed" if "container" in item else "cannot be killed: stuck in the kernel"
    return {"pid": item["pid"], "cmd": item["cmd"], "owner": processes.user_name(os.geteuid()), "why": why}


def removed_containers(folder: str, ids: List[str], left: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The containers of a run that are gone, of those that there were before sweep()."""
    remaining = [item.get("container") for item in left]
    return [{"engine": containers.engine_of(folder), "id": each} for each in ids if each not in remaining]


def ports_of(folder: str) -> List[int]:
    """Ports that processes of the run listen on now, among those it was given."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    try:
        return sorted(network.listeners([int(port) for port in spec.get("used_ports", [])]))
    except state.DAMAGED:
        return []


def _dead_runs() -> List[Tuple[str, str]]:
    """Runs without a guard: known ones, and marks whose run has no folder here any more."""
    known = dict(state.runs())
    marks = processes.marks()
    # runs of another state folder are on this machine too, when it plays several hosts; no lock tells of their guards
    elsewhere = {
        mark
        for process, mark in marks.items()
        if {"ddp-guard", warm.NAME} & {processes.name(pid) for pid in processes.ancestors(process.pid)}
    }
    strays = {mark for mark in marks.values() if state.RUN_ID.match(mark)} - set(known) - elsewhere
    candidates = {**known, **{run_id: state.run_folder(run_id) for run_id in strays}}
    return [(run_id, folder) for run_id, folder in candidates.items() if not state.guarded(folder)]


def _end_warm() -> List[Dict[str, Any]]:
    commands = {}
    for keeper in list(warm.keepers()):
        preloader = warm.end(keeper)
        if preloader is not None:
            commands[preloader] = processes.command(preloader.pid)
    deadline = time.monotonic() + KILL_WINDOW
    while any(map(processes.alive, commands)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [{"pid": process.pid, "cmd": command} for process, command in commands.items()]


def _clear_shared_memory() -> List[str]:
    """Remove segments that NCCL or torch made, that are this user's, and that no process has open or mapped."""
    try:
        names = [name for name in os.listdir(SHARED_MEMORY) if LEFT_IN_MEMORY.match(name)]
    except OSError:
        return []
    mine = [name for name in names if _is_mine(os.path.join(SHARED_MEMORY, name))]
    if not mine:
        return []
    used = _files_in_use()
    freed = []
    for name in mine:
        path = os.path.join(SHARED_MEMORY, name)
        if path not in used:
            try:
                os.unlink(path)
                freed.append(path)
            except OSError:
                pass  # another process has removed it
    return sorted(freed)


def _is_mine(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    # spare segments younger than a minute: the process that created one may not have mapped it yet
    return status.st_uid == os.geteuid() and time.time() - status.st_mtime > 60


def _files_in_use() -> Set[str]:
    """Files of shared memory that a process of this user maps or has open. Other users cannot open these files."""
    used: Set[str] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/maps" % name) as maps:
                used.update(line.split(None, 5)[5].strip() for line in maps if SHARED_MEMORY in line)
            for handle in os.listdir("/proc/%s/fd" % name):
                used.add(os.readlink("/proc/%s/fd/%s" % (name, handle)))
        except OSError:
            continue  # it has gone, or is another user's
    return used


def _gpu_processes() -> List[Tuple[int, int]]:
    """(GPU, pid) of every process that computes there."""
    return [(gpu["index"], process["pid"]) for gpu in gpus.look()["gpus"] for process in gpu["processes"]]


def _holders(ports: List[int], of_gpus: List[Tuple[int, int]]) -> List[Dict[str, Any]]:
    """Processes that do not belong to our runs, on these ports and on any GPU."""
    marks = {process.pid: mark for process, mark in processes.marks().items()}
    holders = []
    for port, inode in sorted(network.listeners(ports).items()):
        pid = network.holder(inode)
        if pid is None:
            holders.append({"what": "port %d" % port, "pid": None, "owner": "another user", "cmd": ""})
        elif pid not in marks:
            holders.append(dict(_who(pid), what="port %d" % port))
    strangers = [(index, pid) for index, pid in of_gpus if pid not in marks and processes.identify(pid)]
    return holders + [dict(_who(pid), what="GPU %d" % index) for index, pid in strangers]


def _who(pid: int) -> Dict[str, Any]:
    uid = processes.owner(pid)
    return {"pid": pid, "owner": "?" if uid is None else processes.user_name(uid), "cmd": processes.command(pid)}


def force(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """End the processes named by the user: TERM, a grace, KILL. `arguments`: pids."""
    killed, remaining = [], []
    for pid in arguments["pids"]:
        process, who = processes.identify(pid), _who(pid)
        if process is None:
            remaining.append(dict(who, owner="", why="no such process"))
        elif pid <= 1 or pid == os.getpid() or pid in processes.ancestors(os.getpid()):
            remaining.append(dict(who, why="this SSH session depends on it"))
        elif _end(process):
            killed.append({"pid": pid, "cmd": who["cmd"]})
        else:
            why = "cannot be killed" if _may_end(process) else "only its owner or root can kill it"
            remaining.append(dict(who, why=why))
    return {"killed": killed, "ports_freed": [], "gpus_freed": [], "remaining": remaining}


def _end(process: processes.Process) -> bool:
    for number, window in ((signal.SIGTERM, FORCE_GRACE), (signal.SIGKILL, KILL_WINDOW)):
        processes.send(process, number)
        deadline = time.monotonic() + window
        while processes.alive(process):
            if time.monotonic() > deadline or not _may_end(process):
                break
            time.sleep(0.02)
        else:
            return True
    return False


def _may_end(process: processes.Process) -> bool:
    return os.geteuid() == 0 or processes.owner(process.pid) in (os.geteuid(), None)
