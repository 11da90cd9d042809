"""`stop`: stop a run on this host, and prove that nothing of it is left."""

import os
import signal
import time
from typing import Any, Dict, List, Optional

from ..gang import gang
from ..guard import autostart
from ..host import containers, memory_folder, network, processes, state
from ..host.sweep import belonging, sweep
from ..link.link import lease
from . import runs
from .leftovers import describe_left, ports_of, removed_containers

LOOK_EVERY = 0.05  # s between looks at the guard; for all processes, which is expensive on a large host, see LOOK_SHARE
GRACE = 30.0  # s, of a run whose record does not tell
REPLACE_WINDOW = 10.0  # s to find a guard, where run.lock is held but the guard on record has ended
REPORT_WINDOW = 5.0  # s for a guard to write its record


def end_run(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """End one run: ask its guard, wait for it, sweep what is left, verify.

    `arguments`: run_id; grace (s; null: the run's own); by; members (optional): the run's processes when the caller
    looked for them, [pid, start time, command] each. Those that ended since are part of the proof.
    """
    run_id = arguments["run_id"]
    folder = state.run_folder(run_id)
    before = {processes.Process(pid, started): command for pid, started, command in arguments.get("members", ())}
    if os.path.isdir(folder):
        before.update((process, processes.command(process.pid)) for process in belonging(run_id, folder))
    held = ports_of(folder)
    ids = containers.find(folder)
    grace = _write_request(folder, arguments) if os.path.isdir(folder) else 0.0
    guard = _find_guard(folder)
    if guard is not None:
        processes.send(guard, signal.SIGTERM)
        deadline = time.monotonic() + grace + _end_window(folder)
        look_at = time.monotonic()
        while runs.guard_of(folder) == guard and time.monotonic() < deadline:
            if time.monotonic() >= look_at:
                began = time.thread_time()
                for process in belonging(run_id, folder):
                    if process not in before:  # started after we looked: a rank, a child of a rank
                        before[process] = processes.command(process.pid)
                look_at = time.monotonic() + (time.thread_time() - began) * processes.LOOK_SHARE
            time.sleep(LOOK_EVERY)  # not every host has a kernel with pidfd
        if runs.guard_of(folder) == guard:
            processes.send(guard, signal.SIGKILL)
    left = sweep(run_id, folder)
    has_autostart = autostart.is_installed(folder)
    if has_autostart:  # no guard was there to remove it
        autostart.remove(folder)
    memory_folder.remove_left(state.read(os.path.join(folder, "spec.json")) or {})
    killed = {process.pid: command for process, command in before.items() if not processes.alive(process)}
    if guard is not None:
        killed.update(_ended(folder))
    return {
        "known": os.path.isdir(folder),
        "killed": [{"pid": pid, "cmd": command} for pid, command in sorted(killed.items())],
        "ports_freed": [port for port in held if port not in network.listeners(held)],
        "gpus_freed": _gpus_of(folder) if guard is not None or arguments.get("members") else [],
        "remaining": [describe_left(process) for process in left],
        "containers": removed_containers(folder, ids, left),
        "autostart_removed": has_autostart,
        "run": runs.describe(run_id, folder) if os.path.isdir(folder) else None,
    }


def _end_window(folder: str) -> float:
    """Seconds beyond the grace for a guard to end: after a lease without its head, or when it gives up other hosts."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    return max(lease(spec), gang.STOP_WINDOW + gang.FAREWELL_WINDOW) + REPORT_WINDOW


def _write_request(folder: str, arguments: Dict[str, Any]) -> float:
    """Write stop.json before looking for the guard: in place of a guard that was killed, none is started then.

    Returns the grace.
    """
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    known = spec.get("grace")
    own = float(known) if isinstance(known, (int, float)) else GRACE
    grace = own if arguments["grace"] is None else float(arguments["grace"])
    if os.path.exists(os.path.join(folder, "exit.json")):
        return grace
    try:
        state.write(os.path.join(folder, "stop.json"), {"by": arguments["by"], "grace": grace, "at": time.time()})
    except OSError:  # a full disk: the guard still stops the run, with the run's own grace
        return max(grace, own)
    return grace


def _find_guard(folder: str) -> Optional[processes.Process]:
    """The guard, if need be the one that its recorder is starting at this moment in place of a killed one."""
    deadline = time.monotonic() + REPLACE_WINDOW
    while True:
        guard = runs.guard_of(folder)
        if guard is not None or not state.guarded(folder) or time.monotonic() > deadline:
            return guard
        time.sleep(LOOK_EVERY)


def _ended(folder: str) -> Dict[int, str]:
    """What the guard has ended by itself: commands by pid."""
    outcome = (state.read(os.path.join(folder, "exit.json")) or {}).get("outcome")
    try:
        return {process["pid"]: process["cmd"] for process in outcome["ended"]} if outcome else {}
    except state.DAMAGED:
        return {}


def _gpus_of(folder: str) -> List[int]:
    """GPUs whose lock the run's guard held."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    try:
        return [int(number) for number in spec.get("gpu_ids", [])]
    except state.DAMAGED:
        return []
