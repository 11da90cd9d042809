"""Locks of a run on a host: its GPUs, its name and so its output folder. A guard holds them for as long as it lives."""

import errno
import fcntl
import os
import time
from typing import Any, Dict, List

from ..host import state
from .wire import Refused

SHARED_WINDOW = 10.0  # s until what the head has written to a shared disk is seen by the other hosts


def take(spec: Dict[str, Any], taken: List[int]) -> None:
    """Locks, held for as long as the guard lives: for each GPU, and for the run's name, hence its output folder."""
    locks = [("GPU %d" % number, "gpu-%d" % number) for number in spec["gpu_ids"]]
    for what, name in locks + [("the name %s" % spec["name"], "name-%s" % spec["name"])]:
        for home in state.homes()[1:]:  # of runs from a time when the state folder was there
            _lock(os.path.join(home, "locks", name), what, taken, os.O_RDWR)
        handle = _lock(os.path.join(state.folder("locks"), name), what, taken, os.O_RDWR | os.O_CREAT)
        os.ftruncate(handle, 0)
        os.pwrite(handle, _holder(spec), 0)


def share_output(spec: Dict[str, Any], taken: List[int]) -> None:
    """Make the output folder on a shared disk and lock it; on the other hosts, see that it is the same folder there."""
    output = spec["shared_output"]
    if not output:
        return
    lock = os.path.join(output, state.OUTPUT_LOCK)
    if spec["node"] == 0:
        if not os.path.isdir(os.path.dirname(output)):
            raise Refused("shared-output-missing", "run.output %s is not a folder here" % os.path.dirname(output))
        try:
            os.makedirs(output, 0o700, exist_ok=True)
            handle = _lock(lock, "the output folder %s" % output, taken, os.O_RDWR | os.O_CREAT)
            os.ftruncate(handle, 0)
            os.pwrite(handle, _holder(spec), 0)
            os.fsync(handle)  # the other hosts do not see this host's page cache
        except OSError as error:
            raise Refused("shared-output-missing", "run.output: %s: %s" % (output, error.strerror)) from error
        return
    deadline = time.monotonic() + SHARED_WINDOW
    while not _content(lock).startswith(b"run %s (" % spec["run_id"].encode("ascii")):
        if time.monotonic() > deadline:
            what = "run.output: %s is not the folder that the head sees; mount the same disk on all hosts" % output
            raise Refused("shared-output-missing", what)
        time.sleep(0.2)


def _holder(spec: Dict[str, Any]) -> bytes:
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return ("run %s (%s), started %s" % (spec["run_id"], spec["name"], started)).encode("utf-8", "replace")


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _lock(path: str, what: str, taken: List[int], flags: int) -> int:
    """Lock a file and add it to `taken`. -1 where there is no such file, and so nobody who has locked it."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return -1
    taken.append(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return handle  # a shared disk without locks; the name of the run is locked on every host
        who = os.pread(handle, 4096, 0).decode("utf-8", "replace")
        end = "`ddp-orch kill INVENTORY %s` ends it" % who.split()[1] if who.startswith("run ") else "end that one"
        text = "%s is taken by %s; %s, or wait for it with --wait" % (what, who or "another run", end)
        raise Refused("held", text) from None
    return handle
