"""The output folders of all runs on this host: listed, and removed where no run uses them. Knows no shared disk."""

import fcntl
import os
import re
import shutil
import time
from typing import Any, Dict, Iterator, List, Tuple

from . import runs, state

GENERATED = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")  # the name of a run that was given none (naming.py)


def listing(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`folders`: each name, bytes, age (s since something in it was written), in_use (by a run that is not over)."""
    specs = [state.read(os.path.join(folder, "spec.json")) for _, folder in state.runs() if runs.guarded(folder)]
    used = {spec["name"] for spec in specs if spec is not None}
    found = []
    for name, folder in _folders():
        size, written = _measure(folder)
        found.append({"name": name, "bytes": size, "age": max(0.0, time.time() - written), "in_use": name in used})
    return {"folders": found}


def remove(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Remove folders. `arguments`: names. `removed` are names, `freed` bytes; what is in use is left."""
    removed: List[str] = []
    freed = 0
    for name, folder in list(_folders()):
        if name in arguments["names"] and (size := _remove(name, folder)) >= 0:
            removed.append(name)
            freed += size
    return {"removed": sorted(set(removed)), "freed": freed}


def retire(days: float) -> Dict[str, Any]:
    """Remove folders of runs without a name in which nothing was written for so many days. As `remove`."""
    oldest = time.time() - days * 86400
    old = [name for name, folder in _folders() if GENERATED.match(name) and _measure(folder)[1] < oldest]
    return remove({"names": old})


def _folders() -> Iterator[Tuple[str, str]]:
    for home in state.homes():
        parent = os.path.join(home, "out")
        for name in sorted(os.listdir(parent)) if os.path.isdir(parent) else []:
            folder = os.path.join(parent, name)
            if os.path.isdir(folder) and not os.path.islink(folder):
                yield name, folder


def _measure(folder: str) -> Tuple[int, float]:
    """The bytes that a folder takes, and when something in it was last written."""
    size, written = 0, os.lstat(folder).st_mtime
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            try:
                found = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            size += found.st_blocks * 512
            written = max(written, found.st_mtime)
    return size, written


def _locks(name: str) -> Iterator[int]:
    """Descriptors of the locks of a run's name: see prepare.py. The caller closes them."""
    for home in state.homes():
        try:
            yield os.open(os.path.join(home, "locks", "name-%s" % name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            pass  # no run had that name since


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(name: str, folder: str) -> int:
    """The bytes freed, -1 where it is still there. Meanwhile no run of that name can begin."""
    locks = list(_locks(name))
    try:
        if not all(map(_try_lock, locks)):
            return -1
        size = _measure(folder)[0]
        shutil.rmtree(folder, ignore_errors=True)
        return -1 if os.path.lexists(folder) else size
    finally:
        for lock in locks:
            os.close(lock)
