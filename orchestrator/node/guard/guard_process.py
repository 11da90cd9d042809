"""Start the process of a run's guard.

It is not a fork of the relay or the recorder: they have threads, and a lock that one of them holds would stay locked.
"""

import json
import os
import socket
import subprocess
from typing import Any, BinaryIO, Dict, List, Optional

from ..host import login_session, processes
from ..host.small_files import open_private
from . import warm


class NotStarted(Exception):
    """The guard ended while it was starting; the text says why."""


def start(
    folder: str,
    spec: Dict[str, Any],
    private: Dict[str, Any],
    sockets: Dict[str, List[socket.socket]],
    locks: List[int],
    past: Optional[Dict[str, Any]] = None,
) -> socket.socket:
    """Start a guard, which has copies of `sockets` and `locks`. Returns our end of its control channel.

    `past`: a Past as a dict, if the run has begun already; run.lock is among the locks then. Raises NotStarted.
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
        "past": past,
    }
    errors = os.path.join(folder, "guard.err")
    if "warm_key" in spec and past is None:
        with open(errors, "ab", opener=open_private) as log:
            if warm.take_over(folder, spec, given, log.fileno()):
                theirs.close()
                return ours
    argv = processes.own_program(spec["program"], "guard", spec["run_id"])
    with theirs, open(errors, "ab", opener=open_private) as log:
        status = _run(login_session.outlive(argv, "ddp-orch run %s" % spec["run_id"]), given, log, folder, inherited)
        if status and login_session.is_in_session():  # systemd-run may have failed, or closed the descriptors
            status = _run(argv, given, log, folder, inherited)
    if status:
        ours.close()
        with open(errors, encoding="utf-8", errors="replace") as log_text:
            error_lines = log_text.read().strip().splitlines()
        raise NotStarted("the guard did not start: %s" % (error_lines[-1] if error_lines else "no output"))
    return ours


def _run(argv: List[str], given: Dict[str, Any], log: BinaryIO, folder: str, inherited: List[int]) -> int:
    """Returns the exit status of the process that starts the guard."""
    child = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,  # the secrets: in no argv, environment or file
        stdout=log,
        stderr=log,
        cwd=folder,
        start_new_session=True,
        pass_fds=inherited,
    )
    child.communicate(json.dumps(given).encode("ascii"))
    return child.returncode
