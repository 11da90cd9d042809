"""The FIFOs through which the recorder gets the output of ranks."""

import contextlib
import fcntl
import os
from typing import Dict, List

F_SETPIPE_SZ = 1031
PIPE_SIZE = 1024 * 1024  # what ranks can write while the recorder is being restarted


def make(folder: str, attempt: int, sources: List[str]) -> Dict[str, int]:
    """The FIFOs of an attempt, by path. The returned descriptors keep their bytes alive when other processes die."""
    keepers = {}
    for source in sources:
        for channel in ("out", "err"):
            path = os.path.join(folder, "%d.%s.%s" % (attempt, source, channel))
            os.mkfifo(path, 0o600)
            keeper = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # the user's share of pipe memory is used up: 64 KiB will do
                fcntl.fcntl(keeper, F_SETPIPE_SZ, PIPE_SIZE)
            keepers[path] = keeper
    return keepers
