"""`prepare`: try everything that can fail in a launch on this host, then start a guard, which waits for the commit."""

import contextlib
import json
import os
import select
import shutil
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..guard import autostart, guard_process, warm
from ..host import beside_code, memory_folder, network, processes, state
from ..link.link import JOIN_WINDOW
from . import led_last, link_port, retire
from . import locks as run_locks
from .wire import Refused

REACH_WINDOW = 4.0  # s to reach the head's two ports from here
MOST_EARLIER = 3  # runs of the same name that are searched for snapshots
FREE_SPACE = 64 * 1024 * 1024  # bytes that the state folder must have left


def prepare(arguments: Dict[str, Any], program: str, started: Callable[[socket.socket], None]) -> Dict[str, Any]:
    """Start a guard for this run, and wait until it is ready. `started` gets its control channel before that."""
    spec: Dict[str, Any] = arguments["spec"]
    private: Dict[str, Any] = arguments["private"]
    retire.tidy(spec["keep"], program)
    beside = [] if spec["gpu_ids"] or state.is_witness(spec) else _guarded_runs()
    folder = _make_folder(spec)
    has_output = not state.is_witness(spec) and (spec["node"] == 0 or not spec["shared_output"])
    resumes = has_output and state.has_files(state.output_folder(folder, spec))
    sockets: Dict[str, List[socket.socket]] = {}
    locks: List[int] = []
    addresses: List[str] = []
    try:
        spec = dict(spec, program=program, epoch=time.time() - time.monotonic())
        check_space(folder)
        state.keep_space(folder)
        spec["cwd"] = _working_folder(spec, folder)
        continues = spec.get("continues")
        carried = _carry_over(continues, spec, folder)
        earlier = led_last.earlier_runs(spec["name"], but=spec["run_id"])
        left_behind = None if carried and carried["snapshot"] else _left_behind(earlier, spec, folder)
        run_locks.take(spec, locks)
        run_locks.share_output(spec, locks)
        if spec["node"] == 0:
            sockets, answer = _open_ports(spec, arguments.get("prefer"))
        else:
            answer = _reach_head(spec, arguments["head"])
            spec.update(link_addresses=answer["reachable"], link_port=arguments["head"]["link_port"])
            addresses = link_port.addresses(spec, answer["reachable"][0])
            sockets["link"] = _open_link(spec, addresses)
        spec["listening"] = [listener.getsockname()[:2] for listener in sockets.get("link", [])]
        spec["contact"] = link_port.contact(sockets.get("link", []), addresses)
        if spec["warm"] and spec["preload"] and not spec["setup"]:  # its lines may set other variables every time
            spec["warm_key"] = warm.make_key(spec)
        spec["used_ports"] = [port for port in (spec["contact"]["port"], answer.get("rdzv_port")) if port]
        state.write(os.path.join(folder, "spec.json"), spec)
        if spec["autostart"] != "none":
            _install_autostart(folder, spec, private)
        control = _start_guard(folder, spec, private, sockets, locks)
    except BaseException:
        if autostart.is_installed(folder):
            autostart.remove(folder)
        memory_folder.remove(spec)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:  # the guard has its own
        for listeners in sockets.values():
            for listener in listeners:
                listener.close()
        for lock in locks:
            os.close(lock)
    started(control)
    try:
        answer.update(ready=ask(control, None, "ready"), beside=beside, resumes=resumes, carried=carried)
        answer.update(left_behind=left_behind, resumed_with=earlier[0][1].get("resume") if earlier else None)
    except Refused:
        abort(control)
        raise
    return answer


def _guarded_runs() -> List[str]:
    return sorted(run_id for run_id, folder in state.runs() if state.guarded(folder))


def _open_link(spec: Dict[str, Any], addresses: List[str]) -> List[socket.socket]:
    try:
        return link_port.listen(spec, addresses)
    except OSError as error:
        what = "no port of run.ports (%d-%d) is free on this host, which needs one to elect a head" % tuple(
            spec["ports"]
        )
        raise Refused("port-in-use", what) from error


def _install_autostart(folder: str, spec: Dict[str, Any], private: Dict[str, Any]) -> None:
    try:
        autostart.install(folder, spec, private)
    except autostart.Unusable as error:
        raise Refused("autostart-unusable", "run.autostart: %s" % error) from error


def _start_guard(
    folder: str,
    spec: Dict[str, Any],
    private: Dict[str, Any],
    sockets: Dict[str, List[socket.socket]],
    locks: List[int],
) -> socket.socket:
    try:
        return guard_process.start(folder, spec, private, sockets, locks)
    except guard_process.NotStarted as error:
        raise Refused("unknown", str(error)) from error


def ask(control: socket.socket, message: Optional[Dict[str, Any]], kind: str) -> Dict[str, Any]:
    """Send a message to a guard and wait for its answer of one kind."""
    try:
        if message is not None:
            control.sendall(json.dumps(message).encode("ascii") + b"\n")
        return _receive(control, kind)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Refused("unknown", "the guard has ended; see guard.err in the run's folder") from error


def _receive(control: socket.socket, kind: str) -> Dict[str, Any]:
    buffer = b""
    deadline = time.monotonic() + JOIN_WINDOW + 10
    while True:
        if not select.select([control], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Refused("unknown", "the guard did not answer in time")
        data = control.recv(65536)
        if not data:
            raise ConnectionResetError
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "error" in answer:
                raise Refused(answer["code"], answer["error"])
            if kind in answer:
                return dict(answer[kind])


def abort(control: socket.socket) -> None:
    """Ask a guard that was not started to end. It may have ended already."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.sendall(b'{"do": "abort"}\n')


def _make_folder(spec: Dict[str, Any]) -> str:
    folder = state.run_folder(spec["run_id"])
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        raise Refused("held", "run %s is already here" % spec["run_id"]) from None
    for name in ("fifo", "log", "torchrun"):
        os.mkdir(os.path.join(folder, name), 0o700)
    return folder


def _working_folder(spec: Dict[str, Any], folder: str) -> str:
    if state.is_witness(spec):
        return folder
    if spec["workdir"] is not None:
        if not os.path.isdir(spec["workdir"]):
            raise Refused("remote-workdir-missing", "workdir %s is not a folder here" % spec["workdir"])
        return str(spec["workdir"])
    snapshot = os.path.join(state.folder("code"), spec["code"]["sha256"])
    if not os.path.isdir(snapshot):
        raise Refused("remote-workdir-missing", "the code snapshot is not here")
    os.utime(snapshot)  # in use: see retire.py
    # the run works in a copy: what it writes beside its code must not change the code of the next run
    code = os.path.join(folder, "code")
    try:
        shutil.copytree(snapshot, code, symlinks=True, copy_function=_copy)
    except shutil.Error as error:
        _, path, why = error.args[0][0]
        raise Refused("unknown", "cannot copy the code to %s: %s" % (path, why)) from error
    cwd = os.path.normpath(os.path.join(code, spec["code"]["cwd"]))
    os.makedirs(cwd, exist_ok=True)
    return cwd


def _carry_over(run_id: Optional[str], spec: Dict[str, Any], folder: str) -> Optional[Dict[str, Any]]:
    """Bring what the run that this one continues has written beside its code. None: nothing."""
    code = beside_code.find(folder, spec)
    old_folder = state.run_folder(run_id) if run_id is not None else None
    old = beside_code.find(old_folder, state.read(os.path.join(old_folder, "spec.json"))) if old_folder else None
    if code is None or old is None:
        return None
    try:
        paths = beside_code.carry_over(old, code)
    except OSError as error:
        if error.errno in state.FULL:
            raise _disk_full("there is no space for what run %s has written beside its code" % run_id) from error
        raise Refused("unknown", "cannot bring what run %s has written: %s" % (run_id, error)) from error
    snapshots = beside_code.named_like_snapshots(paths)
    files = {"count": len(paths), "files": paths[:3], "snapshot": snapshots[0] if snapshots else None}
    return files if paths else None


def _left_behind(
    earlier: List[Tuple[str, Dict[str, Any]]], spec: Dict[str, Any], folder: str
) -> Optional[Dict[str, Any]]:
    """A snapshot that one of these runs, the newest first, has written beside its code, and this run does not have.

    Of each file, only the newest counts.
    """
    new = beside_code.find(folder, spec)
    present = set()
    for folder_before, spec_before in earlier[:MOST_EARLIER]:
        old = beside_code.find(folder_before, spec_before)
        for path in beside_code.snapshots(folder_before, spec_before):
            if new is not None and old is not None and beside_code.is_same(path, old, new):
                present.add(path)
            elif path not in present:
                hidden = new is not None and old is not None and beside_code.is_of_user(path, old, new)
                return {"run_id": spec_before["run_id"], "file": path, "hidden": hidden}
    return None


def _copy(source: str, target: str) -> None:
    try:
        shutil.copy2(source, target)
    except OSError as error:
        if error.errno in state.FULL:  # copytree would continue, and keep only the text of this error
            raise _disk_full("there is no space for a copy of the code in %s" % os.path.dirname(target)) from error
        raise


def check_space(folder: str) -> None:
    filesystem = os.statvfs(folder)
    free = filesystem.f_bavail * filesystem.f_frsize
    if free < FREE_SPACE:
        raise _disk_full("%s has only %d MiB left" % (folder, free >> 20))


def _disk_full(what: str) -> Refused:
    way = "free some, remove old runs with `ddp-orch prune INVENTORY`, or set state_dir to another disk"
    return Refused("disk-full", "%s; %s" % (what, way))


def _open_ports(spec: Dict[str, Any], prefer: Optional[str]) -> Tuple[Dict[str, List[socket.socket]], Dict[str, Any]]:
    """On the head: the link's port, and the rendezvous port, held until torchrun needs it.

    Both listen on each address that the others may reach: only their tests show which ones they do.

    `prefer`: the address of this host to try first, if it still has that one and the inventory names none.
    """
    low, high = spec["ports"]
    alone = len(spec["nodes"]) == 1
    if alone:
        addresses = ["127.0.0.1"]
    elif spec["cluster_address"]:
        addresses = [spec["cluster_address"]]
    elif spec["interface"] != "auto":
        address = network.address_of(spec["interface"])
        if address is None:
            raise Refused("gloo-ifname-no-match", "interface %s is not here, or has no address" % spec["interface"])
        addresses = [address]
    else:
        addresses = sorted(network.candidates(), key=lambda address: address != prefer)
    if not addresses:
        raise Refused("nccl-wrong-nic", "no interface that other hosts can reach; set cluster_address for this host")
    tries = network.random_ports(low, high)
    sockets: Dict[str, List[socket.socket]] = {}
    try:
        if not alone:
            sockets["link"] = network.listen_on(addresses, tries)
            addresses = [listener.getsockname()[0] for listener in sockets["link"]]
        ports = tries if spec["rdzv_port"] == "auto" else [spec["rdzv_port"]]
        sockets["rdzv"] = network.listen_on(addresses, network.free_for_torch(ports))
    except OSError as error:
        for listener in sockets.get("link", []):
            listener.close()
        where = ", ".join(addresses)
        if spec["rdzv_port"] == "auto":
            what = "no free port in %d-%d on %s: %s; set run.ports to a larger range"
            raise Refused("port-in-use", what % (low, high, where, error.strerror or error)) from error
        raise Refused(
            "port-in-use", "rendezvous port %s: %s" % (spec["rdzv_port"], _who_holds(int(spec["rdzv_port"]), error))
        ) from error
    answer = {
        "addresses": addresses,
        "rdzv_port": sockets["rdzv"][0].getsockname()[1],
        "link_port": sockets["link"][0].getsockname()[1] if not alone else None,
    }
    return sockets, answer


def _who_holds(port: int, error: OSError) -> str:
    inode = network.listeners([port]).get(port)
    pid = network.holder(inode) if inode is not None else None
    if pid is None:
        return "%s (held by another user)" % error.strerror if inode is not None else str(error.strerror)
    return "held by pid %d (%s), which ddp-orch did not start; stop it or set run.rdzv.port" % (
        pid,
        processes.command(pid),
    )


def _reach_head(spec: Dict[str, Any], head: Dict[str, Any]) -> Dict[str, Any]:
    """Which of the head's addresses can be reached from here, on both its ports."""
    reachable = []
    trouble = []
    for address in head["addresses"]:
        failed = [
            (port, why)
            for port in (head["link_port"], head["rdzv_port"])  # the latter is None if the run has begun
            if port is not None
            for why in [_try(address, port, spec["cluster_address"])]
            if why
        ]
        if not failed:
            reachable.append(address)
        for port, why in failed:
            trouble.append("%s:%d %s" % (address, port, why))
    if not reachable:
        text = "cannot reach the head: %s; give cluster_address, or open %d-%d between the hosts" % (
            ", ".join(trouble),
            *spec["ports"],
        )
        raise Refused("rdzv-port-blocked", text)
    source = spec["cluster_address"] or network.source_address(reachable[0])
    return {"reachable": reachable, "interface": network.interface_of(source)}


def _try(address: str, port: int, source: Optional[str]) -> Optional[str]:
    try:
        socket.create_connection((address, port), REACH_WINDOW, (source, 0) if source else None).close()
    except OSError as error:
        return error.strerror or str(error) or "timed out"
    return None
