"""Find and kill the processes of a run on this host, by their mark and by the record of the run's guard.

Then remove its containers: an engine may keep one whose processes were killed.
"""

import os
import signal
import time
from typing import Any, Dict, List

from . import containers, processes, state


def sweep(run_id: str, folder: str) -> List[Dict[str, Any]]:
    """Send SIGKILL until no process of the run is left. Returns the processes and containers that are left."""
    return _kill(run_id, folder) + containers.remove(folder)


def _kill(run_id: str, folder: str) -> List[Dict[str, Any]]:
    deadline = time.monotonic() + 10.0
    while True:
        began = time.thread_time()
        left = [process for process in belonging(run_id, folder) if process.pid != os.getpid()]
        look_at = time.monotonic() + (time.thread_time() - began) * processes.LOOK_SHARE
        if not left or time.monotonic() > deadline:
            return [{"pid": process.pid, "cmd": processes.command(process.pid)} for process in left]
        processes.send_all(left, signal.SIGKILL)
        while any(processes.alive(process) for process in left) and time.monotonic() < look_at:
            time.sleep(0.01)  # the kernel needs a moment to end them


def belonging(run_id: str, folder: str) -> List[processes.Process]:
    """Processes of a run, by their mark and by the record its guard kept."""
    members = {process for process, mark in processes.marks().items() if mark == run_id}
    record = state.read(os.path.join(folder, "procs.json")) or {}
    if record.get("boot_id") == state.boot_id():
        try:
            members.update([processes.Process(*map(int, identity)) for identity in record.get("processes", [])])
        except state.DAMAGED:
            pass  # the mark finds nearly all of them
    return [process for process in members if processes.alive(process)]
