"""Import the modules of `run.preload` once, and fork a rank on request. Runs in the user's python, for the guard.

A rank must not differ from a process that python has just started. So the preloader refuses, and the guard starts the
ranks by exec, when a module
- cannot be imported, or ends the process,
- starts a thread or a process, or opens a GPU: they do not survive a fork,
- traces the code: it would see our own, and the time before the fork,
- reads a variable that has another value in the ranks, such as RANK.
When the file of a module changes, the preloader ends too, and the guard starts another one.

With `run.warm` it serves one run after the other (later_runs.py).
"""

from __future__ import annotations

import os
import sys

from . import later_runs
from .later_runs import Changed, Refused, first_path
from .memory import Title, set_mark

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Set

MARK = "DDP_ORCH_RUN_ID"
NO_MARK = later_runs.NO_MARK
READY = b'{"do": "ready", "can_stay": true}'
READY_FOR_ONE_RUN = b'{"do": "ready", "can_stay": false}'
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
LARGEST_REQUEST = 4096  # bytes; the jobs are in a file, whose descriptor comes with the request
LONGEST_REASON = 1000  # characters
NOT_STARTED = 98  # exit status, as in ranks/job.py
PR_SET_PDEATHSIG, SIGKILL = 1, 9


class WatchedEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ, which remembers the names of the variables that are read."""

    names: Set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return str(super().__getitem__(name))


def serve(given: str, environment: Dict[str, str]) -> None:
    """Preload, and fork the ranks that the guard asks for. Returns only in a rank.

    `given`: JSON with `channel` (a descriptor), `guard` (its pid), `modules`; `folder`: that of the run if the
    preloader may serve later runs, else null. `environment`: os.environ, as it was before anything was imported.
    """
    first = first_path(sys.argv[0], os.getcwd())
    sys.path[:0] = first  # a file of the user may hide one that a module imports, as it does in a new interpreter
    import json
    import socket

    options = json.loads(given)
    channel = socket.socket(fileno=options["channel"])
    channel.set_inheritable(False)
    try:
        names_read = preload(options["modules"])
        if sys.path[: len(first)] != first:
            raise Refused("a module changes the head of sys.path when it is imported")
        del sys.path[: len(first)]
        title = Title()
        title.write([("ddp-orch preload " + " ".join(options["modules"])).encode()], b"ddp-preload")
        can_stay = options["folder"] is not None and not later_runs.depends_on(options["folder"])
        if can_stay:
            os.chdir("/")  # the folder of the run may be deleted
            works = later_runs.try_another_command()
            if works is None:
                return
            can_stay = works
        channel.send(READY if can_stay else READY_FOR_ONE_RUN)
        rank = wait_for_rank(channel, names_read, environment)
    except Changed as error:
        end(channel, {"do": "changed", "why": str(error)})
    except Refused as error:
        end(channel, {"do": "refuse", "why": str(error)})
    except BaseException as error:  # noqa: BLE001  also SystemExit, by a module
        end(channel, {"do": "refuse", "why": "%s: %s" % (type(error).__name__, error)})
    channel.close()
    title.restore(rank.job["argv"] if rank.is_of_later_run else None)
    become(rank.job, options["guard"], rank.changes)
    if rank.is_of_later_run:
        try:
            later_runs.reconfigure(rank.job["argv"])
        except BaseException as error:  # noqa: BLE001  the command of the first run must not begin
            sys.stderr.write("ddp-orch: cannot start the rank: %s\n" % error)
            os._exit(NOT_STARTED)


def end(channel: socket.socket, message: Dict[str, str]) -> NoReturn:
    import json

    channel.send(json.dumps(dict(message, why=message["why"][:LONGEST_REASON])).encode())
    os._exit(1)


# importing


def preload(modules: List[str]) -> Set[str]:
    """Import the modules. Returns the names of the variables that they read."""
    import gc
    from importlib import import_module

    if is_traced():
        raise Refused("this python is traced, by coverage or a debugger")
    plain = type(os.environ)
    os.environ.__class__ = WatchedEnvironment
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # for torch, collections are a quarter of the time of the import
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            raise Refused("cannot import %s: %s: %s" % (name, type(error).__name__, error)) from error
        if reason := why_not_to_fork():
            raise Refused("%s %s when it is imported" % (name, reason))
    os.environ.__class__ = plain
    gc.freeze()  # a collection in a rank would write to all objects, and so copy their pages
    if gc.get_threshold()[0] == 0:  # no module has set another one
        gc.set_threshold(*thresholds)
    return WatchedEnvironment.names


def why_not_to_fork() -> str:
    try:
        os.waitpid(-1, os.WNOHANG)
        return "starts a process"
    except ChildProcessError:
        pass
    pid = os.fork()  # libraries that handle forks, such as OpenBLAS, end their threads now
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        return "starts a thread"
    if is_traced():
        return "traces the code"
    return "opens a GPU" if any(map(is_gpu, os.listdir("/proc/self/fd"))) else ""


def is_traced() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring is not None else []
    return sys.gettrace() is not None or sys.getprofile() is not None or any(tools)


def is_gpu(handle: str) -> bool:
    try:
        return os.readlink("/proc/self/fd/" + handle).startswith(GPU_FILES)
    except OSError:
        return False  # closed by now: it was that of the folder itself


def identities() -> Dict[str, object]:
    """The identity of the file of each module, and of the folders of installed packages.

    A package that is added to such a folder may change what an import does.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = [path for path in files if path]
    paths += [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    return {path: identity(path) for path in paths}


def identity(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return None  # in an archive
    return status.st_mtime_ns, status.st_size, status.st_ino


def check_files(files: Mapping[str, object]) -> None:
    for path, before in files.items():
        if identity(path) != before:
            raise Changed(path)


def check_names(names_read: Set[str], changes: Mapping[str, Optional[str]]) -> None:
    both = names_read.intersection(changes)
    if both:
        raise Refused("a module reads %s when it is imported, before its value is known" % min(both))


# forking


class Rank:
    """What a fork becomes. `changes`: variables that have another value there. None: it is not set."""

    def __init__(self, job: Mapping[str, Any], changes: Mapping[str, Optional[str]], is_of_later_run: bool) -> None:
        self.job = job
        self.changes = changes
        self.is_of_later_run = is_of_later_run


def wait_for_rank(channel: socket.socket, names_read: Set[str], environment: Dict[str, str]) -> Rank:
    """Fork ranks, for one run after the other. Returns in a rank."""
    files = identities()
    is_of_later_run = False
    while True:
        request = receive(channel)
        check_files(files)
        if "env" in request:
            later_runs.move(request, names_read, environment)
            channel.send(READY)
            is_of_later_run = True
            continue
        for job in request["jobs"]:
            changes = later_runs.differences(environment, {**environment, **job["env"]})
            check_names(names_read, changes)
            if NO_MARK in environment:
                changes[NO_MARK] = None
            if fork(channel, job):
                return Rank(job, changes, is_of_later_run)


def receive(channel: socket.socket) -> Dict[str, Any]:
    """A request of the guard: `jobs` to fork, or what a later run has in common with its ranks."""
    import array
    import json

    data, ancillary, _, _ = channel.recvmsg(LARGEST_REQUEST, LARGEST_REQUEST)
    if not data:
        os._exit(0)  # the guard has ended
    handles = array.array("i")
    handles.frombytes(ancillary[0][2])
    with os.fdopen(handles[0], "rb") as file:
        file.seek(0)
        request: Dict[str, Any] = json.loads(file.read())
    return request


def fork(channel: socket.socket, job: Mapping[str, Any]) -> bool:
    """Fork a rank as a child of the guard. True in the rank, which begins after the guard was told its pid.

    The process between the preloader and the rank ends at once, and the kernel gives its child to the nearest
    subreaper: the guard.
    """
    import json
    import socket

    ours, theirs = socket.socketpair()
    between = os.fork()
    if between == 0:
        try:
            if os.fork():
                os._exit(0)
            ours.close()
            set_mark(NO_MARK, MARK, job["env"][MARK])
            theirs.send(b"%d" % os.getpid())
            if not theirs.recv(1):
                os._exit(0)  # the preloader was ended
            theirs.close()
        except OSError:
            os._exit(1)  # out of processes
        return True
    theirs.close()
    with ours:
        pid = ours.recv(16)
        os.waitpid(between, 0)
        if not pid:
            raise Refused("cannot fork")
        channel.send(json.dumps({"do": "forked", "label": job["label"], "pid": int(pid)}).encode())
        try:
            ours.send(b".")
        except OSError:
            pass  # the rank was killed; its parent, the guard, will see that
    return False


def become(job: Mapping[str, Any], guard: int, changes: Mapping[str, Optional[str]]) -> None:
    """Do what ranks/job.py does before exec."""
    import ctypes

    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0)
        if os.getppid() != guard:
            os.kill(os.getpid(), SIGKILL)
        os.chdir(job["cwd"])
        later_runs.set_variables(changes)
        for number, key in ((1, "stdout"), (2, "stderr")):
            printed = os.pread(number, os.fstat(number).st_size, 0)  # by the modules: every rank prints it
            fifo = os.open(job[key], os.O_RDWR)
            os.dup2(fifo, number)
            os.close(fifo)
            while printed:
                printed = printed[os.write(number, printed) :]
    except OSError as error:
        sys.stderr.write("ddp-orch: cannot start the rank: %s\n" % error)
        os._exit(NOT_STARTED)
    reseed()


def reseed() -> None:
    """Give the rank random numbers of its own, as a new interpreter has. `random` does this itself after a fork."""
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()
