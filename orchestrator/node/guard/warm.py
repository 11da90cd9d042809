"""Preloaders between runs, with `run.warm`: which one a run may use, where they are, and how a guard takes one over.

A preloader is a child of a guard, and has to stay one: a rank must be a child of its guard. So the guard of an ended
run becomes the keeper of its preloader, by exec (keeper.py), and the keeper becomes the guard of the next run.
"""

import array
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..host import processes, state
from ..host.guard_locks import RUN_LOCK
from ..host.small_files import text_of
from ..ranks import launch
from ..ranks.job import in_memory
from .requests import is_own, peer, socket_name

NAME = "ddp-warm"  # of keepers, as `ps` of the host shows them
RECORD = "warm.json"
MOST = 2  # keepers on a host; when there is another one, the oldest ends
ANSWER_WINDOW = 10.0  # s for a keeper to become a guard
LONGEST = 4096  # bytes of a request; the rest is in a file, whose descriptor comes with it
TAKE_OVER, END, ENDED = b"take over", b"end", b"ended"  # requests, and the answer to the second

# they differ between logins
OF_LOGIN = re.compile(r"SSH_(CLIENT|CONNECTION|TTY|AUTH_SOCK)|XDG_SESSION_ID|_|SHLVL|OLDPWD|PWD")
SCOPE = re.compile(r"/(session-[^/]*|run-[^/]*)\.scope")


class Ended(Exception):
    """The keeper has been asked to end."""


class Keeper(NamedTuple):
    folder: str
    record: Dict[str, Any]


def make_key(spec: Dict[str, Any]) -> str:
    """A hash of what a process has from the run and the login that start it, and cannot change later."""
    has = [
        [spec["program"], spec["command"][: launch.SCRIPT], spec["preload"], spec["setup"], len(spec["run_id"])],
        launch.preload_job(dict(spec, warm_key=""), {}, "", "")["env"],
        sorted((name, value) for name, value in os.environ.items() if not OF_LOGIN.fullmatch(name)),
        [resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")],
        [sorted(os.getgroups()), os.getgid(), sorted(os.sched_getaffinity(0)), os.nice(0), _umask()],
        SCOPE.sub("", text_of("/proc/self/cgroup")),
        [_namespace(name) for name in ("mnt", "pid", "net", "ipc", "user", "cgroup")],
    ]
    return hashlib.sha256(json.dumps(has, sort_keys=True).encode("ascii")).hexdigest()


def _umask() -> int:
    for line in text_of("/proc/self/status").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return -1  # before Linux 4.7


def _namespace(name: str) -> int:
    try:
        return os.stat("/proc/self/ns/" + name).st_ino
    except OSError:
        return 0


# keepers of this host


def keepers() -> Iterator[Keeper]:
    """Those that are alive. Removes what others have left."""
    parent = state.folder("warm")
    for name in sorted(os.listdir(parent)):
        folder = os.path.join(parent, name)
        record = state.read(os.path.join(folder, RECORD))
        if state.guarded(folder) and record is not None:
            yield Keeper(folder, record)
        elif not state.guarded(folder) and _is_older(folder, ANSWER_WINDOW):
            shutil.rmtree(folder, ignore_errors=True)


def _is_older(folder: str, seconds: float) -> bool:
    try:
        return time.time() - os.stat(folder).st_mtime > seconds
    except FileNotFoundError:
        return False  # its keeper has just ended, or become a guard


def end(keeper: Keeper) -> Optional[processes.Process]:
    """End a keeper, and with it its preloader. Returns the preloader; None if there is none any more.

    By a request, not by a signal: the keeper may become a guard at any time, and has the same pid then.
    """
    try:
        identity, preloader = [processes.Process(*map(int, keeper.record[name])) for name in ("keeper", "preloader")]
    except state.DAMAGED:
        return None
    try:
        with _connect(keeper) as connection:
            connection.send(END)
            return preloader if connection.recv(LONGEST) == ENDED else None
    except socket.timeout:  # it hangs, and so becomes no guard; since Python 3.10 the name of TimeoutError
        return preloader if state.guarded(keeper.folder) and processes.send(identity, signal.SIGKILL) else None
    except OSError:
        return None  # it has become a guard, or has ended


def end_later(keeper: Keeper) -> None:
    """As `end`, without waiting: two keepers may end each other."""
    try:
        with _connect(keeper) as connection:
            connection.send(END)
    except OSError:
        pass  # it has become a guard, or has ended


def _connect(keeper: Keeper) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(ANSWER_WINDOW)
        connection.connect(socket_name(keeper.folder))
        if not is_own(connection):
            raise PermissionError
    except OSError:
        connection.close()
        raise
    return connection


def describe(keeper: Keeper) -> Dict[str, Any]:
    """As `ps` shows it. Raises one of state.DAMAGED."""
    record = keeper.record
    age = max(0.0, time.time() - record["since"])
    return {
        "pid": record["preloader"][0],
        "python": record["python"],
        "modules": record["modules"],
        "age": age,
        "left": max(0.0, record["seconds"] - age),
        "memory": _memory(record["preloader"][0]),
    }


def _memory(pid: int) -> int:
    """Bytes."""
    for line in text_of("/proc/%d/status" % pid).splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


# taking over


def take_over(run_folder: str, spec: Dict[str, Any], given: Dict[str, Any], log: int) -> bool:
    """Have a keeper become the guard of this run, with its preloader. False if there is none for it.

    `given`: what a guard gets on its stdin. `log`: for its errors.
    """
    for keeper in keepers():
        if keeper.record.get("key") == spec["warm_key"] and _ask(keeper, run_folder, spec, given, log):
            return True
    return False


def _ask(keeper: Keeper, run_folder: str, spec: Dict[str, Any], given: Dict[str, Any], log: int) -> bool:
    request = {"key": spec["warm_key"], "folder": run_folder, "env": dict(os.environ), "given": given}
    data = in_memory(json.dumps(request).encode("ascii"))  # in no file: it holds the secrets
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(ANSWER_WINDOW)
        pid = -1
        try:
            connection.connect(socket_name(keeper.folder))
            if not is_own(connection):
                return False
            pid = peer(connection)[0]
            handles = array.array("i", [data, log, *given["inherited"]]).tobytes()
            connection.sendmsg([TAKE_OVER], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
            return connection.recv(LONGEST) == b"guard"
        except OSError:
            if pid > 0:  # it may still become a guard, so it must end before another one is started
                process = processes.identify(pid)
                if process is not None and list(process) == keeper.record.get("keeper"):
                    processes.send(process, signal.SIGKILL)
            return False
        finally:
            os.close(data)


def receive(connection: socket.socket) -> Optional[Tuple[Dict[str, Any], List[int]]]:
    """The request of a relay, for the keeper, and the descriptors that came with it. Raises Ended."""
    message, ancillary, _, _ = connection.recvmsg(LONGEST, socket.CMSG_SPACE(253 * 4))
    if message == END:
        with contextlib.suppress(OSError):  # see `end_later`
            connection.send(ENDED)
        raise Ended
    handles = array.array("i")
    for _, _, raw in ancillary:
        handles.frombytes(raw[: len(raw) - len(raw) % handles.itemsize])
    if message != TAKE_OVER or len(handles) < 2:
        for handle in handles:
            os.close(handle)
        return None
    for handle in handles:
        os.set_inheritable(handle, False)
    with os.fdopen(handles[0], "rb") as file:
        file.seek(0)
        request: Dict[str, Any] = json.loads(file.read())
    return request, list(handles[1:])


def lock(folder: str) -> int:
    """A keeper holds it for as long as it lives, as a guard that of its run."""
    import fcntl

    handle = os.open(os.path.join(folder, RUN_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle
