"""`stop` and `stale`: end a run on this host, or what runs that are over have left, and prove that it is gone."""

import os
import pwd
import signal
import time
from typing import Any, Dict, List, Tuple

from . import network, processes, runs, state
from .link import LEASE
from .recorder import belonging, sweep

REPORT_WINDOW = 5.0  # s beyond the grace and the lease for a guard to write its record


def end_run(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """End one run: ask its guard, wait for it, sweep what is left, verify.

    `arguments`: run_id; grace (s; null: the run's own); by.
    """
    run_id = arguments["run_id"]
    folder = state.run_folder(run_id)
    before = {one: processes.command(one.pid) for one in belonging(run_id, folder)} if os.path.isdir(folder) else {}
    held = _ports_of(folder)
    guard = runs.guard_of(folder) if os.path.isdir(folder) else None
    if guard is not None:
        spec = state.read(os.path.join(folder, "spec.json")) or {}
        grace = float(arguments["grace"] if arguments["grace"] is not None else spec.get("grace", 30.0))
        state.write(os.path.join(folder, "stop.json"), {"by": arguments["by"], "grace": grace, "at": time.time()})
        processes.send(guard, signal.SIGTERM)
        deadline = time.monotonic() + grace + LEASE + REPORT_WINDOW
        known = set(before)
        while processes.alive(guard) and time.monotonic() < deadline:
            for one in belonging(run_id, folder):
                if one not in known:  # started after we looked: a rank, a child of a rank
                    known.add(one)
                    before[one] = processes.command(one.pid)
            time.sleep(0.05)  # between looks; pidfd would need a kernel that not every host has
        if processes.alive(guard):
            processes.send(guard, signal.SIGKILL)
    left = sweep(run_id, folder)
    killed = {one.pid: command for one, command in before.items() if not processes.alive(one)}
    outcome = (state.read(os.path.join(folder, "exit.json")) or {}).get("outcome")
    if guard is not None and outcome:
        killed.update((one["pid"], one["cmd"]) for one in outcome["ended"])
    return {
        "known": os.path.isdir(folder),
        "killed": [{"pid": pid, "cmd": command} for pid, command in sorted(killed.items())],
        "ports_freed": [port for port in held if port not in network.listeners(held)],
        "gpus_freed": _gpus_of(folder) if guard is not None else [],
        "remaining": [dict(one, owner=_name(os.geteuid()), why="does not die: stuck in the kernel") for one in left],
        "run": runs.describe(run_id, folder) if os.path.isdir(folder) else None,
    }


def _ports_of(folder: str) -> List[int]:
    """Ports that processes of the run listen on now, among those it was given."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    wanted = [int(port) for port in spec.get("used_ports", [])]
    return sorted(network.listeners(wanted))


def _gpus_of(folder: str) -> List[int]:
    """GPUs whose lock the run's guard held."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    return [int(number) for number in spec.get("gpu_ids", [])]


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def stale(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """End every process that carries the mark of a run that is over or has no guard any more."""
    killed: List[Dict[str, Any]] = []
    remaining: List[Dict[str, Any]] = []
    ports: List[int] = []
    for run_id, folder in _dead_runs():
        before = {one: processes.command(one.pid) for one in belonging(run_id, folder)}
        held = _ports_of(folder)
        left = sweep(run_id, folder)
        killed += [{"pid": one.pid, "cmd": command} for one, command in before.items() if not processes.alive(one)]
        remaining += [dict(one, owner=_name(os.geteuid()), why="does not die: stuck in the kernel") for one in left]
        ports += [port for port in held if port not in network.listeners(held)]
    return {"killed": killed, "ports_freed": ports, "gpus_freed": [], "remaining": remaining}


def _dead_runs() -> List[Tuple[str, str]]:
    """Runs without a guard: known ones, and marks whose run has no folder here any more."""
    known = dict(state.runs())
    marks = processes.marks()
    # runs of another state folder are on this machine too, when it plays several hosts; no lock tells of their guards
    elsewhere = {
        mark for process, mark in marks.items() if "ddp-guard" in map(processes.name, processes.ancestors(process.pid))
    }
    strays = {mark for mark in marks.values() if state.RUN_ID.match(mark)} - set(known) - elsewhere
    candidates = {**known, **{run_id: state.run_folder(run_id) for run_id in strays}}
    return [(run_id, folder) for run_id, folder in candidates.items() if not runs.guarded(folder)]
