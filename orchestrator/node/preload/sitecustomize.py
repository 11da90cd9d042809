"""Import the modules of `run.preload` once, and fork a rank on request. Runs in the user's python, for the guard.

The guard starts the user's own command with this folder at the head of PYTHONPATH (run/preloader.py). Python imports
`sitecustomize` before it looks at its command line. In that process the import does not return: it serves the guard. It
returns in the forked ranks, where python continues with the command. So argv, __main__, sys.path and tracebacks are
made by python itself, and no frame of this module is on the stack.

A rank must not differ from a process that python has just started. So the preloader refuses, and the guard starts the
ranks by exec, when a module
- cannot be imported, or ends the process,
- starts a thread or a process, or opens a GPU: they do not survive a fork,
- reads a variable that has another value in the ranks, such as RANK.
When the file of a module changes, the preloader ends too, and the guard starts another one.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    import socket
    from typing import Dict, List, Mapping, NoReturn, Set, Tuple

OPTIONS = "DDP_ORCH_PRELOAD"  # descriptor of the channel, pid of the guard, names of modules
CHECK = "DDP_ORCH_PRELOAD_CHECK"  # set where the guard only tests whether this python imports us
PATH_BEFORE = "DDP_ORCH_PRELOAD_PYTHONPATH"  # PYTHONPATH without this folder; missing where it is not set
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
LARGEST_REQUEST = 4096  # bytes; the jobs are in a file, whose descriptor comes with the request
LONGEST_REASON = 1000  # characters
NOT_STARTED = 98  # exit status, as in run/job.py
PR_SET_PDEATHSIG, SIGKILL = 1, 9


class Refused(Exception):
    """The ranks have to be started by exec."""


class Changed(Exception):
    """A file of a module is not the one that was imported."""


class WatchedEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ, which remembers the names of the variables that are read."""

    names: Set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return str(super().__getitem__(name))


def main() -> None:
    """Returns in ranks, and where python was started with this folder for another reason."""
    if CHECK in os.environ:
        sys.ddp_orch_preload = True  # type: ignore[attr-defined]
        return
    options = os.environ.pop(OPTIONS, None)
    remove_traces()
    environment = dict(os.environ)
    try:
        import_hidden()
    finally:  # an exception is for python, after the fork
        if options is not None:
            handle, guard, *modules = options.split()
            serve(int(handle), int(guard), modules, environment)


def remove_traces() -> None:
    """Make sys.path, its cache and PYTHONPATH what they would be without this folder."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    before = os.environ.pop(PATH_BEFORE, None)
    if before is not None:
        os.environ["PYTHONPATH"] = before
    else:
        os.environ.pop("PYTHONPATH", None)


def import_hidden() -> None:
    """Import the sitecustomize that this one hides. The ImportError, where there is none, is what python expects."""
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")


def serve(handle: int, guard: int, modules: List[str], environment: Mapping[str, str]) -> None:
    """Preload, and fork the ranks that the guard asks for. Returns only in a rank."""
    first = first_path()
    sys.path[:0] = first  # a file of the user may hide one that a module imports, as it does in a new interpreter
    import json
    import socket

    channel = socket.socket(fileno=handle)
    channel.set_inheritable(False)
    try:
        names_read = preload(modules)
        if sys.path[: len(first)] != first:
            raise Refused("a module changes the head of sys.path when it is imported")
        del sys.path[: len(first)]
        title = Title("ddp-orch preload " + " ".join(modules))
        channel.send(json.dumps({"do": "ready"}).encode())
        job, changes = wait_for_rank(channel, names_read, environment)
    except Changed as error:
        end(channel, {"do": "changed", "why": str(error)})
    except Refused as error:
        end(channel, {"do": "refuse", "why": str(error)})
    except BaseException as error:  # noqa: BLE001  also SystemExit, by a module
        end(channel, {"do": "refuse", "why": "%s: %s" % (type(error).__name__, error)})
    channel.close()
    title.restore()
    become(job, guard, changes)


def end(channel: socket.socket, message: Dict[str, str]) -> NoReturn:
    import json

    channel.send(json.dumps(dict(message, why=message["why"][:LONGEST_REASON])).encode())
    os._exit(1)


def first_path() -> List[str]:
    """The entry that python puts at the head of sys.path when it runs the command."""
    if getattr(sys.flags, "safe_path", False):
        return []
    if sys.argv[0] == "-c":
        return [""]
    return [os.getcwd() if sys.argv[0] == "-m" else os.path.dirname(os.path.realpath(sys.argv[0]))]


# importing


def preload(modules: List[str]) -> Set[str]:
    """Import the modules. Returns the names of the variables that they read."""
    import gc
    from importlib import import_module

    plain = type(os.environ)
    os.environ.__class__ = WatchedEnvironment
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            raise Refused("cannot import %s: %s: %s" % (name, type(error).__name__, error)) from error
        if reason := why_not_to_fork():
            raise Refused("%s %s when it is imported" % (name, reason))
    os.environ.__class__ = plain
    gc.collect()
    gc.freeze()  # a collection in a rank would write to all objects, and so copy their pages
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
    return "opens a GPU" if any(map(is_gpu, os.listdir("/proc/self/fd"))) else ""


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


def check_names(names_read: Set[str], changes: Mapping[str, str]) -> None:
    both = names_read.intersection(changes)
    if both:
        raise Refused("a module reads %s when it is imported, before its value is known" % min(both))


# forking


def wait_for_rank(
    channel: socket.socket, names_read: Set[str], environment: Mapping[str, str]
) -> Tuple[Dict[str, object], Dict[str, str]]:
    """Fork ranks. Returns in a rank: its job, and the variables that it changes."""
    files = identities()
    while True:
        jobs = receive_jobs(channel)
        check_files(files)
        for job in jobs:
            env: Dict[str, str] = job["env"]  # type: ignore[assignment]
            changes = {name: value for name, value in env.items() if environment.get(name) != value}
            check_names(names_read, changes)
            if fork(channel, job["label"]):
                return job, changes


def receive_jobs(channel: socket.socket) -> List[Dict[str, object]]:
    import array
    import json

    data, ancillary, _, _ = channel.recvmsg(LARGEST_REQUEST, LARGEST_REQUEST)
    if not data:
        os._exit(0)  # the guard has ended
    handles = array.array("i")
    handles.frombytes(ancillary[0][2])
    with os.fdopen(handles[0], "rb") as file:
        file.seek(0)
        jobs: List[Dict[str, object]] = json.loads(file.read())
    return jobs


def fork(channel: socket.socket, label: object) -> bool:
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
        channel.send(json.dumps({"do": "forked", "label": label, "pid": int(pid)}).encode())
        try:
            ours.send(b".")
        except OSError:
            pass  # the rank was killed; its parent, the guard, will see that
    return False


def become(job: Mapping[str, object], guard: int, changes: Mapping[str, str]) -> None:
    """Do what run/job.py does before exec."""
    import ctypes

    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0)
        if os.getppid() != guard:
            os.kill(os.getpid(), SIGKILL)
        os.chdir(str(job["cwd"]))
        os.environ.update(changes)
        for number, key in ((1, "stdout"), (2, "stderr")):
            printed = os.pread(number, os.fstat(number).st_size, 0)  # by the modules: every rank prints it
            fifo = os.open(str(job[key]), os.O_RDWR)
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


class Title:
    """What `ps` shows of the preloader: its arguments, which are in its memory, and its name."""

    def __init__(self, text: str) -> None:
        import ctypes

        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        self._begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
        self._arguments = ctypes.string_at(self._begin, end - self._begin)
        with open("/proc/self/comm", "rb") as file:
            self._name = file.read().rstrip(b"\n")
        length = len(self._arguments)
        self._write(text.encode()[: max(0, length - 1)].ljust(length, b"\0"), b"ddp-preload")

    def restore(self) -> None:
        self._write(self._arguments, self._name)

    def _write(self, arguments: bytes, name: bytes) -> None:
        import ctypes

        ctypes.memmove(self._begin, arguments, len(arguments))
        with open("/proc/self/comm", "wb") as file:
            file.write(name)


main()
