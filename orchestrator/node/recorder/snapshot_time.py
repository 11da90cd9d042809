"""How long the script takes to save a snapshot: from the signal to the line in which it says so. Kept in snapshot.json.

A full disk is no error: without a measurement, run.walltime has a lead that fits most scripts.
"""

import contextlib
import os
import time
from typing import Any, Dict, Optional

from ..host import state

NAME = "snapshot.json"


def begin(folder: str) -> None:
    """The ranks of the run in this folder are asked for a snapshot now."""
    _write(folder, {"seconds": last(folder), "asked_at": time.monotonic(), "boot_id": state.boot_id()})


def end(folder: str) -> None:
    """A rank has said that it is saved."""
    record = state.read(os.path.join(folder, NAME)) or {}
    asked_at = record.get("asked_at")
    if isinstance(asked_at, float) and record.get("boot_id") == state.boot_id():
        _write(folder, {"seconds": max(0.0, time.monotonic() - asked_at)})


def last(folder: str) -> Optional[float]:
    """Seconds of the last snapshot; None: unknown."""
    seconds = (state.read(os.path.join(folder, NAME)) or {}).get("seconds")
    return seconds if isinstance(seconds, float) else None


def of_earlier_run(folder: str, name: str) -> Optional[float]:
    """As `last`, of the newest run of that name before this one."""
    runs, run_id = os.path.split(folder)
    for other in sorted((other for other in os.listdir(runs) if other < run_id), reverse=True):
        seconds = last(os.path.join(runs, other))
        if seconds is not None:
            spec = state.read(os.path.join(runs, other, "spec.json")) or {}
            if spec.get("name") == name:
                return seconds
    return None


def _write(folder: str, record: Dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        state.replace(os.path.join(folder, NAME), record)
