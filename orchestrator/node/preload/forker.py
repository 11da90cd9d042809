"""Import the modules of `run.preload` once, and fork a rank on request. Runs in the user's python, for the guard.

A rank must not differ from a process that python has just started. So the preloader refuses, and the guard starts the
ranks by exec, when a module
- cannot be imported, or ends the process,
- starts a thread or a process, or opens a GPU: they do not survive a fork,
- traces the code: it would see our own, and the time before the fork,
- sets the seed of random numbers: each rank gets a new one,
- reads a variable that has another value in the ranks, such as RANK, or that the script sets.
When the file of a module changes, the preloader ends too, and the guard starts another one.

Later it imports what the script imports (extension.py). With `run.warm` it serves one run after the other
(later_runs.py).
"""

from __future__ import annotations

import os
import sys

from . import extension, later_runs, script_modules
from .imports import Changed, Importing, Refused, WatchedEnvironment, check_files, identities, is_traced
from .later_runs import first_path
from .memory import Title, set_mark

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, List, Mapping, NoReturn, Optional

MARK = "DDP_ORCH_RUN_ID"
NO_MARK = later_runs.NO_MARK
READY = b'{"do": "ready", "can_stay": true}'
READY_FOR_ONE_RUN = b'{"do": "ready", "can_stay": false}'
LARGEST_REQUEST = 4096  # bytes; the jobs are in a file, whose descriptor comes with the request
LONGEST_REASON = 1000  # characters
NOT_STARTED = 98  # exit status, as in ranks/job.py
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def serve(given: str, environment: Dict[str, str]) -> None:
    """Preload, and fork the ranks that the guard asks for. Returns only in a rank.

    `given`: JSON with `channel` (a descriptor), `guard` (its pid), `modules`; `folder`: that of the run if the
    preloader may serve later runs, else null. `environment`: os.environ, as it was before anything was imported.
    """
    importing = Importing(first_path(sys.argv[0], os.getcwd()))
    importing.begin()
    import json
    import socket

    options = json.loads(given)
    channel = socket.socket(fileno=options["channel"])
    channel.set_inheritable(False)
    try:
        preload(options["modules"], importing)
        importing.finish()
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
        rank = wait_for_rank(channel, can_stay, environment)
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


def preload(modules: List[str], importing: Importing) -> None:
    from importlib import import_module

    if is_traced():
        raise Refused("this python is traced, by coverage or a debugger")
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            raise Refused("cannot import %s: %s: %s" % (name, type(error).__name__, error)) from error
        importing.check(name)


def check_names(changes: Mapping[str, Optional[str]]) -> None:
    name = WatchedEnvironment.was_read(changes)
    if name:
        raise Refused("a module reads %s when it is imported, before its value is known" % name)


def check_script(job: Mapping[str, Any]) -> None:
    name = WatchedEnvironment.was_read(script_modules.find(job["argv"], job["cwd"]).variables)
    if name:
        raise Refused("the script sets %s, which a module reads when it is imported" % name)


# forking


class Rank:
    """What a fork becomes. `changes`: variables that have another value there. None: it is not set."""

    def __init__(self, job: Mapping[str, Any], changes: Mapping[str, Optional[str]], is_of_later_run: bool) -> None:
        self.job = job
        self.changes = changes
        self.is_of_later_run = is_of_later_run


def wait_for_rank(channel: socket.socket, can_stay: bool, environment: Dict[str, str]) -> Rank:
    """Fork ranks, for one run after the other. Returns in a rank."""
    files = identities()
    is_of_later_run = is_checked = False
    while True:
        request = receive(channel)
        check_files(files)
        if "env" in request:
            later_runs.move(request, environment)
            channel.send(READY)
            is_of_later_run, is_checked = True, False
            continue
        if "script" in request:
            if extension.extend(request["script"], channel):
                can_stay = can_stay and not later_runs.depends_on(request["script"]["folder"])
                if can_stay:
                    os.chdir("/")
                channel.send(READY if can_stay else READY_FOR_ONE_RUN)
                files = identities()
            continue
        if not is_checked:
            check_script(request["jobs"][0])
            is_checked = True
        for job in request["jobs"]:
            changes = later_runs.differences(environment, {**environment, **job["env"]})
            check_names(changes)
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
    renew()
    reseed()


def renew() -> None:
    """Make what modules make when they are imported, and what is not the same in any two interpreters."""
    logging, process = sys.modules.get("logging"), sys.modules.get("multiprocessing.process")
    if logging is not None:
        import time

        is_in_ns = isinstance(vars(logging)["_startTime"], int)  # since Python 3.13
        vars(logging)["_startTime"] = time.time_ns() if is_in_ns else time.time()
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def reseed() -> None:
    """Give the rank random numbers of its own, as a new interpreter has. `random` does this itself after a fork."""
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()
