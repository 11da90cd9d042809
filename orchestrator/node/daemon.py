"""Fork the guard off the relay that prepares a run: it owes nothing to the SSH session, and outlives it."""

import os
import resource
import socket
import sys
from typing import Any, Dict, List

from . import processes
from .guard import Guard


def daemonise(
    folder: str,
    spec: Dict[str, Any],
    private: Dict[str, Any],
    sockets: Dict[str, List[socket.socket]],
    locks: List[int],
) -> socket.socket:
    """Fork a guard that owes nothing to the SSH session. Returns the relay's end of its control channel."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        os.waitpid(child, 0)
        return ours
    try:
        ours.close()
        os.setsid()
        if os.fork():
            os._exit(0)
        umask = os.umask(0o077)  # ours; what the ranks write is as open as the user's login makes it
        _detach(
            folder, [theirs.fileno()] + [one.fileno() for listeners in sockets.values() for one in listeners] + locks
        )
        processes.set_name("ddp-guard")
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        # a rank takes 12 of guard and recorder, and 1024 are little for a host with many
        descriptors, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        spec = dict(spec, umask=umask, descriptors=descriptors)
        guard = Guard(folder, spec, private, theirs, sockets, locks)
        guard.hold()
        guard.run()
        guard.close()
        os._exit(0)
    except BaseException:  # noqa: BLE001  the last resort: the fork of a relay must never return into its code
        import traceback

        traceback.print_exc()  # stderr is guard.err by now
        sys.stderr.flush()
        os._exit(70)


def _detach(folder: str, needed: List[int]) -> None:
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(os.path.join(folder, "guard.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    keep = {0, 1, 2} | set(needed)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of this listing itself
