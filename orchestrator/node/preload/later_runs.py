"""What a preloader needs that serves one run after the other, with `run.warm`. Runs in the user's python.

It was started with the command and the variables of the first run.
"""

from __future__ import annotations

import os
import sys

from .imports import Changed, Refused, WatchedEnvironment

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

NO_MARK = "DDP_ORCH_NO_RUN"  # in place of the mark, and as long: only the ranks are processes of the run
WORKS = 42  # exit status of the trial


def first_path(script: str, folder: str) -> List[str]:
    """The entry that python puts at the head of sys.path for a script, or for -m or -c, that it runs in a folder."""
    if getattr(sys.flags, "safe_path", False):
        return []
    if script == "-c":
        return [""]
    return [folder if script == "-m" else os.path.dirname(os.path.realpath(os.path.join(folder, script)))]


def depends_on(folder: str) -> bool:
    """Whether a module, or a folder for modules, is in the folder of the run, which a later run does not have."""
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    files = [path for path in files if os.path.isabs(path)]  # that of torch.ops is `_ops.py`, in no folder
    folders = [path or "." for path in sys.path]  # setuptools adds names of its own, which are no files
    paths = [os.path.realpath(path) for path in [*files, *filter(os.path.exists, folders)]]
    return any(path.startswith(os.path.realpath(folder) + os.sep) for path in paths)


def move(request: Mapping[str, Any], environment: Dict[str, str]) -> None:
    """Become what a preloader of this run would be. Raises Changed where that is not possible."""
    changes = differences(environment, request["env"])
    name = WatchedEnvironment.was_read(changes)
    if name:
        raise Changed("a module has read %s, which has another value in this run" % name)
    hidden = find_hidden(first_path(request["script"], request["cwd"]), request["cwd"])
    if hidden:
        raise Changed("a file of the code hides the module %s" % hidden)
    set_variables(changes)
    environment.clear()
    environment.update(request["env"])


def find_hidden(first: List[str], folder: str) -> str:
    """A module that was imported, and that a new interpreter would import from the code of the run. "": none."""
    for entry in first:
        entry = entry or folder
        for name in os.listdir(entry):
            module = name.partition(".")[0]
            is_module = name.rpartition(".")[2] in ("py", "pyc", "so")
            if module in sys.modules and (is_module or os.path.exists(os.path.join(entry, name, "__init__.py"))):
                return module
    return ""


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> Dict[str, Optional[str]]:
    names = set(before).union(after)
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def set_variables(changes: Mapping[str, Optional[str]]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def reconfigure(argv: List[str]) -> None:
    """Have this python run another command than the one that it was started with. Raises Refused.

    Initializing it again, by its C API (docs.python.org/3/c-api/init_config.html), sets the command. Python looks at
    the command when its initialization is complete, and now it is importing `sitecustomize`.
    """
    import ctypes

    class Status(ctypes.Structure):  # PyStatus
        _fields_ = (
            ("kind", ctypes.c_int),
            ("function", ctypes.c_char_p),
            ("message", ctypes.c_char_p),
            ("code", ctypes.c_int),
        )

    before = dict(vars(sys))
    api = ctypes.pythonapi
    config = ctypes.create_string_buffer(1 << 16)  # PyConfig: about 400 bytes
    words = [os.fsencode(word) for word in argv]
    set_argv, initialize = api.PyConfig_SetBytesArgv, api.Py_InitializeFromConfig
    set_argv.restype = initialize.restype = Status
    set_argv.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p]
    initialize.argtypes = [ctypes.c_void_p]
    api.PyConfig_InitPythonConfig(config)
    for status in (set_argv(config, len(words), (ctypes.c_char_p * len(words))(*words)), initialize(config)):
        if status.kind:
            raise Refused("python does not take another command: %s" % status.message)
    api.PyConfig_Clear(config)
    for name, value in before.items():
        if name not in ("argv", "orig_argv"):
            setattr(sys, name, value)  # sys.path, for example: what `site` has added is not in the configuration
    if sys.argv[1:] != argv[len(argv) - len(sys.argv) + 1 :] or sys.argv is before["argv"]:
        raise Refused("this python does not take another command")


def try_another_command() -> Optional[bool]:
    """Whether `reconfigure` works in this python. Returns None in the process that tries it: it runs the command."""
    pid = os.fork()
    if pid == 0:
        try:
            reconfigure([sys.executable, "-c", "import os; os._exit(%d)" % WORKS, "trial"])
        except BaseException:  # noqa: BLE001  the command of the run must not begin
            os._exit(1)
        return None
    return os.waitpid(pid, 0)[1] == WORKS << 8
