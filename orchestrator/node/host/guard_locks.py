"""The locks of a run on this host: of GPUs, name, output and memory folder, and the one that proves it has a guard."""

import errno
import fcntl
import os
import time
from typing import Any, Dict, List

from . import memory_folder, state

RUN_LOCK = "run.lock"
READERS_WINDOW = 1.0  # s: `state.guarded` of another process holds run.lock for an instant


class Held(Exception):
    """Another run holds a lock; the text says which, and how to end it."""


def take(spec: Dict[str, Any], taken: List[int]) -> None:
    """Lock each GPU of the run, its name (hence its output folder) and its folder in memory, which is made.

    Locks are added to `taken`. Raises Held, memory_folder.Unusable.
    """
    if state.is_witness(spec):
        return  # of several runs with the same name, perhaps
    names = [("GPU %d" % number, "gpu-%d" % number, "") for number in spec["gpu_ids"]]
    names.append(("the name %s" % spec["name"], "name-%s" % spec["name"], "choose another --name, "))
    for what, name, choice in names:
        for home in state.homes()[1:]:  # of runs from a time when the state folder was there
            lock(os.path.join(home, "locks", name), what, taken, os.O_RDWR, choice)
        handle = lock(os.path.join(state.folder("locks"), name), what, taken, os.O_RDWR | os.O_CREAT, choice)
        write_holder(handle, spec)
    memory_folder.make(spec, taken)


def take_run(folder: str, taken: List[int]) -> None:
    """Lock a run that has begun already, for a guard to come: whoever holds the lock may start it. Raises Held."""
    handle = os.open(os.path.join(folder, RUN_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    taken.append(handle)
    deadline = time.monotonic() + READERS_WINDOW
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise Held("the run has a guard here") from None
        time.sleep(0.01)


def take_output(spec: Dict[str, Any], taken: List[int]) -> None:
    """On the head: lock the output folder on a disk that the hosts share, if the run has one. Raises Held, OSError."""
    output = spec["shared_output"]
    if not output or spec["node"] != 0:
        return
    path = os.path.join(output, state.OUTPUT_LOCK)
    handle = lock(path, "the output folder %s" % output, taken, os.O_RDWR | os.O_CREAT, wait="--wait")
    write_holder(handle, spec)
    os.fsync(handle)  # the other hosts do not see this host's page cache


def lock(path: str, what: str, taken: List[int], flags: int, choice: str = "", wait: str = "--queue") -> int:
    """Lock a file and add it to `taken`. -1 where there is no such file, and so nobody who has locked it.

    `choice`: what the user can do besides ending the holder or waiting for it, for the text of Held. `wait`: the flag
    of `up` that waits for the holder; --queue waits only for a name and for GPUs.
    """
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
        end = "end it with `ddp-orch kill INVENTORY %s`" % who.split()[1] if who.startswith("run ") else "end that one"
        choices = "%s%s, or wait for it with %s" % (choice, end, wait)
        raise Held("%s is taken by %s; %s" % (what, who or "another run", choices)) from None
    return handle


def write_holder(handle: int, spec: Dict[str, Any]) -> None:
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    holder = "run %s (%s), started %s" % (spec["run_id"], spec["name"], started)
    os.ftruncate(handle, 0)
    os.pwrite(handle, holder.encode("utf-8", "replace"), 0)
