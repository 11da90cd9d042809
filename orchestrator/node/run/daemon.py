"""Start a run's guard, and put guard and recorder together. Each is an interpreter of its own.

The guard is not a fork of the relay: the relay has threads, and a lock that one of them holds would stay locked.
"""

import json
import os
import resource
import socket
import subprocess
import sys
from typing import Any, Dict, List, NoReturn

from ..host import processes


class NotStarted(Exception):
    """The guard ended while it was starting; the text says why."""


def start(
    folder: str,
    spec: Dict[str, Any],
    private: Dict[str, Any],
    sockets: Dict[str, List[socket.socket]],
    locks: List[int],
    rejoin: bool = False,
) -> socket.socket:
    """Start a guard, which has copies of `sockets` and `locks`. Returns the relay's end of its control channel.

    `rejoin`: the run was started before, and its folder has the records of the guard before. Raises NotStarted.
    """
    ours, theirs = socket.socketpair()
    handles = {name: [listener.fileno() for listener in listeners] for name, listeners in sockets.items()}
    inherited = [theirs.fileno(), *(handle for some in handles.values() for handle in some), *locks]
    given = {
        "folder": folder,
        "spec": spec,
        "private": private,
        "inherited": inherited,
        "control": theirs.fileno(),
        "sockets": handles,
        "locks": locks,
        "rejoin": rejoin,
    }
    errors = os.path.join(folder, "guard.err")
    with theirs, open(errors, "ab", opener=_private) as log:
        child = subprocess.Popen(
            processes.own_program(spec["program"], "guard", spec["run_id"]),
            stdin=subprocess.PIPE,  # the secrets: in no argv, environment or file
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            pass_fds=inherited,
        )
        child.communicate(json.dumps(given).encode("ascii"))
    if child.returncode:
        ours.close()
        with open(errors, encoding="utf-8", errors="replace") as log:
            error_lines = log.read().strip().splitlines()
        raise NotStarted("the guard did not start: %s" % (error_lines[-1] if error_lines else "no output"))
    return ours


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def main_guard() -> int:
    """Verb `guard RUN`: become the guard, given all it needs on stdin and by inherited descriptors. RUN is for `ps`."""
    from .guard import Guard  # the relay has no use for it

    given = json.load(sys.stdin)
    if os.fork():
        return 0  # the relay waits for this parent; the guard is not its child
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    umask = os.umask(0o077)  # for our files; files of the ranks get the umask of the user's login
    # each rank takes 12 descriptors of guard and recorder, so 1024 are not enough for many ranks
    descriptors, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for handle in given["inherited"]:
        os.set_inheritable(handle, False)
    processes.set_name("ddp-guard")
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(
        given["folder"],
        dict(given["spec"], umask=umask, descriptors=descriptors),
        given["private"],
        socket.socket(fileno=given["control"]),
        {name: [socket.socket(fileno=number) for number in handles] for name, handles in given["sockets"].items()},
        given["locks"],
        given["rejoin"],
    )
    guard.hold()
    guard.run()
    guard.close()
    os._exit(0)  # at once: a relay that waits for the end of the control channel expects the process to be gone


def main_recorder() -> NoReturn:
    """Verb `recorder RUN`: started by the guard, with all it needs on stdin and by inherited descriptors."""
    from . import history, upkeep  # the relay has no use for these
    from .follower import WorkerLink
    from .head import HeadLink
    from .recorder import Recorder

    given = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    processes.set_name("ddp-recorder")
    guard, *listeners = [socket.socket(fileno=handle) for handle in given["sockets"]]
    for sock in (guard, *listeners):
        sock.set_inheritable(False)
    history.History(given["folder"]).start()
    upkeep.start(given["folder"], given["spec"])
    side = HeadLink if given["spec"]["node"] == 0 else WorkerLink
    Recorder(
        given["folder"],
        given["spec"],
        given["private"],
        guard,
        given["guard_pid"],
        lambda recorder: side(recorder, listeners),
    ).run()
    os._exit(0)  # without waiting for the thread of the history
