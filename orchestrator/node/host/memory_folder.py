"""The folder of a run on /dev/shm, for snapshots in memory: made, locked, removed.

/dev/shm/ddp-orch-UID-RUN-NODE/   0700. The guard locks it for as long as it lives: one without a lock is left behind
  saved/                          $DDP_ORCH_MEMORY_DIR: what the ranks of this host save
"""

import fcntl
import os
import re
import shutil
import stat
import time
from typing import Any, Dict, List

from . import state
from .small_files import text_of

SHM = "/dev/shm"
SAVED = "saved"
REMOVAL_WINDOW = 5.0  # s for processes that were killed to stop writing to it
TAKEOVER_WINDOW = 60.0  # s in which a folder gets its first lock
_NAME = re.compile(r"ddp-orch-(\d+)-[a-z0-9-]+-\d+(\.new)?\Z")


class Unusable(Exception):
    """There can be no such folder; the text says why."""


def is_wanted(spec: Dict[str, Any]) -> bool:
    """Whether this node has one."""
    return spec.get("memory_limit") is not None and not state.is_witness(spec)


def path(spec: Dict[str, Any]) -> str:
    """The number of the node is in it, as hosts that are containers may share /dev/shm."""
    return os.path.join(SHM, "ddp-orch-%d-%s-%d" % (os.geteuid(), spec["run_id"], spec["node"]))


def free() -> int:
    """Bytes that fit into /dev/shm. It may be larger than the memory that is free. Raises OSError."""
    filesystem = os.statvfs(SHM)
    known = [line.split() for line in text_of("/proc/meminfo").split("\n") if line.startswith("MemAvailable:")]
    available = [int(words[1]) * 1024 for words in known]
    return min([filesystem.f_bavail * filesystem.f_frsize, *available])


def make(spec: Dict[str, Any], taken: List[int]) -> None:
    """Make the folder, or take over that of a killed guard. Its lock is added to `taken`. Raises Unusable."""
    if not is_wanted(spec):
        return
    folder = path(spec)
    try:
        if not os.path.lexists(folder):
            _make_new(folder, spec["memory_limit"], taken)
        else:
            taken.append(_lock(folder))
    except OSError as error:
        raise Unusable("%s: %s" % (folder, error.strerror)) from error


def _make_new(folder: str, limit: int, taken: List[int]) -> None:
    if free() < limit:
        raise Unusable("only %d MiB of memory are free in %s; run.memory_limit is %d MiB" % _mib(free(), SHM, limit))
    new = folder + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.mkdir(new, 0o700)
    os.mkdir(os.path.join(new, SAVED), 0o700)
    taken.append(_lock(new))
    os.rename(new, folder)  # with its lock


def _mib(least: int, where: str, limit: int) -> Any:
    return least >> 20, where, limit >> 20


def _lock(folder: str) -> int:
    """Raises Unusable, OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise Unusable("%s is not private to you; remove it" % folder)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def remove(spec: Dict[str, Any]) -> List[str]:
    """The run is over on this host, and its ranks have ended. Returns the path of the folder, if there was one."""
    folder = path(spec) if is_wanted(spec) else ""
    if not os.path.lexists(folder):
        return []
    deadline = time.monotonic() + REMOVAL_WINDOW
    shutil.rmtree(folder, ignore_errors=True)
    while os.path.lexists(folder) and time.monotonic() < deadline:
        time.sleep(0.02)  # a process of ours that was killed has made another file in it
        shutil.rmtree(folder, ignore_errors=True)
    return [folder]


def remove_left(spec: Dict[str, Any]) -> List[str]:
    """As `remove`, of a run that seems to have no guard. Does nothing while the folder is locked for one."""
    try:
        handle = _lock(path(spec) if is_wanted(spec) else "")
    except (OSError, Unusable):
        return []
    try:
        return remove(spec)
    finally:
        os.close(handle)


def remove_strays() -> List[str]:
    """Remove folders of this user that have no guard, whatever is known of their runs. Returns their paths."""
    removed = []
    for name in _names():
        folder = os.path.join(SHM, name)
        try:
            if time.time() - os.lstat(folder).st_mtime < TAKEOVER_WINDOW:
                continue
            handle = _lock(folder)
        except (OSError, Unusable):
            continue  # it has a guard, or is not ours
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
        removed.append(folder)
    return removed


def _names() -> List[str]:
    try:
        found = [(_NAME.match(name), name) for name in os.listdir(SHM)]
    except OSError:
        return []
    return sorted(name for match, name in found if match and int(match.group(1)) == os.geteuid())
