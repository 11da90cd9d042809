"""Locks of a run on a host: its GPUs, its name and so its output folder. A guard holds them for as long as it lives."""

import os
import time
from typing import Any, Dict, List

from ..host import guard_locks, memory_folder, state
from .wire import Refused

SHARED_WINDOW = 10.0  # s until what the head has written to a shared disk is seen by the other hosts


def take(spec: Dict[str, Any], taken: List[int]) -> None:
    """Lock each GPU, the run's name, hence its output folder, and its folder in memory, which is made."""
    try:
        guard_locks.take(spec, taken)
    except guard_locks.Held as error:
        raise Refused("held", str(error)) from error
    except memory_folder.Unusable as error:
        raise Refused("memory-dir-unusable", "run.memory_limit: %s" % error) from error


def share_output(spec: Dict[str, Any], taken: List[int]) -> None:
    """Make the output folder on a shared disk and lock it; on the other hosts, see that it is the same folder there."""
    output = spec["shared_output"]
    if not output or state.is_witness(spec):
        return
    if spec["node"] == 0:
        if not os.path.isdir(os.path.dirname(output)):
            raise Refused("shared-output-missing", "run.output %s is not a folder here" % os.path.dirname(output))
        try:
            os.makedirs(output, 0o700, exist_ok=True)
            guard_locks.take_output(spec, taken)
        except guard_locks.Held as error:
            raise Refused("held", str(error)) from error
        except OSError as error:
            raise Refused("shared-output-missing", "run.output: %s: %s" % (output, error.strerror)) from error
        return
    lock = os.path.join(output, state.OUTPUT_LOCK)
    deadline = time.monotonic() + SHARED_WINDOW
    while not _content(lock).startswith(b"run %s (" % spec["run_id"].encode("ascii")):
        if time.monotonic() > deadline:
            what = "run.output: %s is not the folder that the head sees; mount the same disk on all hosts" % output
            raise Refused("shared-output-missing", what)
        time.sleep(0.2)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""
