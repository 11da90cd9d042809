"""Turn into a command that the user runs next to a run: terminal, folder, variables, PATH, then exec. A verb.

relay ──> [bash -lc SETUP; exec shell-exec FD] ──> the command, or the engine's client
engine ──> shell-exec inside ... ──> the command, in a container
"""

import fcntl
import json
import os
import shlex
import sys
import termios
from typing import Dict, List

from ..ranks.contained import decode_environment

NOT_STARTED = 127  # exit status, as of a shell that does not find a command
INTERACTIVE = ["sh", "-c", "if command -v bash >/dev/null; then exec bash --norc -i; else exec sh -i; fi"]
"""~/.bashrc is not read: it may put another python in front."""


def main(arguments: List[str]) -> int:
    """Verb `shell-exec FD`, or `shell-exec inside PYTHON COMMAND...` in a container. Returns only if that fails."""
    if arguments[0] == "inside":
        decode_environment()
        return _execute(arguments[2:], dict(os.environ), arguments[1])
    with os.fdopen(int(arguments[0]), "rb") as file:
        job = json.loads(file.read())
    if job["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    try:
        os.chdir(job["cwd"])
    except OSError as error:
        sys.stderr.write("ddp-orch: %s: %s\n" % (job["cwd"], error.strerror))
        return NOT_STARTED
    return _execute(job["argv"], {**os.environ, **job["env"]}, job["python"])


def command_of(words: List[str]) -> List[str]:
    """One word is a shell line, as for `ddp-orch exec`; none is an interactive shell."""
    if not words:
        return INTERACTIVE
    return ["sh", "-c", words[0]] if len(words) == 1 else words


def _execute(argv: List[str], environment: Dict[str, str], python: str) -> int:
    environment["PATH"] = _with_python(environment.get("PATH", os.defpath), python)
    sys.stdout.flush()
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606
    except OSError as error:
        sys.stderr.write("ddp-orch: %s: %s\n" % (shlex.quote(argv[0]), error.strerror))
    return NOT_STARTED


def _with_python(path: str, python: str) -> str:
    """PATH with the folder of `python`. That of a venv or conda environment comes first, any other last."""
    folder = os.path.dirname(python)
    if not folder.startswith("/"):
        return path
    root = os.path.dirname(folder)
    is_venv = any(os.path.lexists(os.path.join(root, name)) for name in ("pyvenv.cfg", "conda-meta"))
    return os.pathsep.join([folder, path] if is_venv else [path, folder])
