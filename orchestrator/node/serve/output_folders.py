"""List the output folders of all runs on this host, and remove unused ones. Ignores folders on shared disks."""

import fcntl
import os
import shutil
import time
from typing import Any, Dict, Iterator, List, Set, Tuple

from ..host import state


def listing(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`folders`: each name, bytes, age (s since something in it was written), in_use (by a run that has not ended)."""
    used = _used()
    folders = []
    for name, folder in _folders():
        size, written = measure(folder)
        folders.append({"name": name, "bytes": size, "age": max(0.0, time.time() - written), "in_use": name in used})
    return {"folders": folders}


def remove(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Remove folders. `arguments`: names. `removed` are names, `freed` bytes; what is in use is left."""
    removed: List[str] = []
    freed = 0
    names = set(arguments["names"]) - _used()
    for name, folder in list(_folders()):
        if name in names and (size := _remove(name, folder)) >= 0:
            removed.append(name)
            freed += size
    return {"removed": sorted(set(removed)), "freed": freed}


def retire(days: float) -> Dict[str, Any]:
    """Remove folders of runs without a name in which nothing was written for so many days. As `remove`."""
    oldest = time.time() - days * 86400
    old = [name for name, folder in _folders() if state.LISTED.match(name) and measure(folder)[1] < oldest]
    return remove({"names": old})


def _used() -> Set[str]:
    """Names of the runs that are not over."""
    specs = [state.read(os.path.join(folder, "spec.json")) for _, folder in state.runs() if state.guarded(folder)]
    return {spec["name"] for spec in specs if spec is not None}


def _folders() -> Iterator[Tuple[str, str]]:
    for home in state.homes():
        parent = os.path.join(home, "out")
        for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else []:
            folder = os.path.join(parent, name)
            if os.path.isdir(folder) and not os.path.islink(folder):
                yield name, folder


def measure(folder: str) -> Tuple[int, float]:
    """The bytes that a folder takes, and when something in it was last written."""
    size, written = 0, os.lstat(folder).st_mtime
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            size += status.st_blocks * 512
            written = max(written, status.st_mtime)
    return size, written


def _remove(name: str, folder: str) -> int:
    """The bytes freed, -1 where it is still there. Meanwhile no run of that name can begin."""
    locks: List[int] = []
    try:
        _lock(name, locks)
        size = measure(folder)[0]
        shutil.rmtree(folder, ignore_errors=True)
        return -1 if os.path.lexists(folder) else size
    except OSError:
        return -1  # a run has the lock, or no lock can be taken: the disk is full, or does not support locks
    finally:
        for lock in locks:
            os.close(lock)


def _lock(name: str, taken: List[int]) -> None:
    """Take the locks of a run's name as prepare.py does. Raises OSError."""
    state.folder("locks")
    for number, home in enumerate(state.homes()):
        create = 0 if number else os.O_CREAT
        try:
            path = os.path.join(home, "locks", "name-%s" % name)
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | create, 0o600)
        except FileNotFoundError:
            continue  # no run had that name there
        taken.append(handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
