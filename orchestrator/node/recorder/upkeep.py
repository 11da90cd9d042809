"""Keep the files of a run that is running from cleaners of old files, such as systemd-tmpfiles. Reads none of them.

The state folder may lie in /var/tmp or on a scratch disk, where what nobody has read for 10 to 30 days is removed.
"""

import os
import threading
import time
from typing import Any, Dict, Iterator

from ..host import state

EVERY = 12 * 3600.0  # s


def start(folder: str, spec: Dict[str, Any]) -> None:
    """In a thread of its own: a disk may not answer for minutes, and the journal must not wait."""
    try:
        threading.Thread(target=_run, args=(folder, spec), name="upkeep", daemon=True).start()
    except RuntimeError:
        pass  # the ranks have used up the user's processes; the next recorder tries again


def _run(folder: str, spec: Dict[str, Any]) -> None:
    while True:
        time.sleep(EVERY)
        for path in needed(folder, spec):
            renew(path)


def needed(folder: str, spec: Dict[str, Any]) -> Iterator[str]:
    """What a run needs of the state folder: its own, its outputs, its locks, its code and the node program."""
    home = state.home_of(folder)
    yield folder
    yield os.path.join(home, "out", spec["name"])
    yield os.path.join(home, "locks")
    if spec.get("code"):
        yield os.path.join(home, "code", spec["code"]["sha256"])
    yield spec["program"]


def renew(path: str) -> None:
    """Set the time of the last access to now, of a folder and all below it. That of the last change stays: it says
    when a run began and when bytes came.
    """
    _touch(path)
    for parent, folders, names in os.walk(path):
        for name in folders + names:
            _touch(os.path.join(parent, name))


def _touch(path: str) -> None:
    try:
        changed = os.stat(path, follow_symlinks=False).st_mtime_ns
        os.utime(path, ns=(time.time_ns(), changed), follow_symlinks=False)
    except OSError:
        pass  # gone by now, or not ours
