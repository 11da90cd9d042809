"""Import the modules of the script too, before a restart needs them. Runs in the user's python.

A fork of the preloader does it, and then serves the guard in its place. The preloader only waits for the fork to end.
If a module cannot be imported in a process that is no rank, the fork is given up, and another one leaves the module to
the ranks. So nothing is lost by trying.
"""

from __future__ import annotations

import os
import sys

from . import script_modules
from .imports import Importing, Refused, WatchedEnvironment
from .later_runs import first_path

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Set

    from .script_modules import Import

TRIES = 4
LIMIT = 60.0  # s for a module: ranks of the next attempt may wait for it
DONE = b"done"
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def extend(script: Mapping[str, Any], channel: socket.socket) -> bool:
    """Whether this process, which goes on serving, has imported more.

    `script`: `argv` and `cwd` of the command, and `late`: names of the variables that only ranks have.
    """
    found = script_modules.find(script["argv"], script["cwd"])
    wanted = [each for each in found.imports if not each.is_done()]
    late = found.variables.union(script["late"])
    for _ in range(TRIES):
        if not wanted:
            break
        failed = extend_in_fork(wanted, script, late, channel)
        if failed is None:
            return True
        if failed < 0:
            break
        del wanted[failed]
    return False


def extend_in_fork(
    wanted: List[Import], script: Mapping[str, Any], late: Set[str], channel: socket.socket
) -> Optional[int]:
    """Returns None in the fork if it has imported all, else in this process the number of the import that failed.

    -1: the fork took too long. `late`: variables whose values only the ranks have.
    """
    import socket

    sizes = printed()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        with theirs:
            import_all(wanted, script, late, parent, theirs)
        return None
    theirs.close()
    failed = 0
    with ours:
        ours.settimeout(LIMIT)
        try:
            while message := ours.recv(16):
                if message == DONE:
                    wait_for_end(pid, channel)
                failed = int(message)
        except socket.timeout:  # since Python 3.10 the name of TimeoutError
            os.kill(pid, SIGKILL)
            failed = -1
    os.waitpid(pid, 0)
    for number, size in sizes.items():  # the ranks will print it
        os.ftruncate(number, size)
        os.lseek(number, size, os.SEEK_SET)
    return failed


def import_all(
    wanted: List[Import], script: Mapping[str, Any], late: Set[str], parent: int, told: socket.socket
) -> None:
    """In the fork. Returns when all is imported; else this process ends."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        os.chdir(script["cwd"])
        importing = Importing(first_path(script["argv"][script_modules.SCRIPT], script["cwd"]))
        importing.begin()
        sizes = printed()
        for number, each in enumerate(wanted):
            told.send(b"%d" % number)
            known = len(sys.modules)
            each.run()
            if len(sys.modules) == known:
                continue
            importing.check(each.module)
            # a rank prints it after what the script has printed before, or not at all if the script filters warnings
            if WatchedEnvironment.was_read(late) or printed() != sizes:
                raise Refused(each.module)
        importing.finish()
        told.send(DONE)
    except BaseException:  # noqa: BLE001  also SystemExit, by a module; the ranks will import it themselves
        os._exit(1)


def printed() -> Dict[int, int]:
    """How many bytes the modules have printed, to stdout and stderr."""
    return {number: os.fstat(number).st_size for number in (1, 2)}


def wait_for_end(pid: int, channel: socket.socket) -> NoReturn:
    """The fork serves now, and is found by the guard as a process below this one."""
    channel.close()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)
