"""Import modules before ranks exist, and notice what would not survive a fork. Runs in the user's python."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, Set

# beginnings of names: variables that the C code of torch and numpy reads by `getenv` when it is loaded
READ_IN_C = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "MKLDNN_", "OPENBLAS_", "ONEDNN_", "DNNL_", "NPY_", "KINETO_"),
    *("TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_DISTRIBUTED_DEBUG"),
    *("TORCH_ALLOW_TF32", "TORCH_BLAS_PREFER", "TORCH_LINALG_PREFER"),
)
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


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

    @classmethod
    def was_read(cls, names: Iterable[str]) -> str:
        """One of these variables that a module has read. "": none."""
        return min((name for name in names if name in cls.names or name.startswith(READ_IN_C)), default="")


class Importing:
    """Imports between `begin` and `finish`, and what they must not do."""

    def __init__(self, first: List[str]) -> None:
        """`first`: the head of sys.path in the ranks."""
        self._first = first

    def begin(self) -> None:
        import gc
        import random  # noqa: F401  so that nobody sets its seed unnoticed

        self._environment = type(os.environ)
        self._thresholds = gc.get_threshold()
        self._states = random_states()
        os.environ.__class__ = WatchedEnvironment
        gc.set_threshold(0)  # for torch, collections are a quarter of the time of the import
        sys.path[:0] = self._first  # a file of the user may hide one that a module imports, as in a new interpreter

    def check(self, name: str) -> None:
        """Raises Refused if the module that was imported has done something that ranks would notice."""
        if reason := why_not_to_fork():
            raise Refused("%s %s when it is imported" % (name, reason))
        if sys.path[: len(self._first)] != self._first:
            raise Refused("%s changes the head of sys.path when it is imported" % name)
        before, self._states = self._states, random_states()
        if any(self._states[module] != state for module, state in before.items()):
            raise Refused("%s uses random numbers, or sets their seed, when it is imported" % name)

    def finish(self) -> None:
        import gc

        os.environ.__class__ = self._environment
        del sys.path[: len(self._first)]
        gc.freeze()  # a collection in a rank would write to all objects, and so copy their pages
        if gc.get_threshold()[0] == 0:  # no module has set another one
            gc.set_threshold(*self._thresholds)


def random_states() -> Dict[str, object]:
    """The state of each global generator of random numbers, by its module."""
    states: Dict[str, object] = {}
    modules = sys.modules
    if "random" in modules:
        states["random"] = modules["random"].getstate()
    if "numpy.random" in modules:
        name, keys, *rest = modules["numpy.random"].get_state()
        states["numpy"] = [name, keys.tobytes(), rest]
    if hasattr(modules.get("torch"), "default_generator"):
        states["torch"] = modules["torch"].default_generator.get_state().tolist()
    return states


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
