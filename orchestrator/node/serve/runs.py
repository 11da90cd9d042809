"""The runs of this host: their records, and whether their guard lives. Reads only."""

import os
from typing import Any, Dict, List, Optional

from ..guard import autostart, warm
from ..host import json_lines, ledger, processes, state
from ..host.sweep import belonging
from ..link.attempt_phase import AttemptPhase
from . import other_users, run_queue

SCRIPT_MOST = 200  # characters
LEDGER_MOST = 20  # ended runs
STATES = {AttemptPhase.PREPARED: "starting", AttemptPhase.RUNNING: "running", AttemptPhase.EXITED: "waiting"}
"""Of a host by itself. With its ranks ended, it waits for the other hosts, or for those that were lost."""


def describe(run_id: str, folder: str) -> Optional[Dict[str, Any]]:
    """A run as `ps` shows it; None when its record is incomplete: its preparation was interrupted, or it is damaged."""
    try:
        return _describe(run_id, folder)
    except state.DAMAGED:
        return None


def _describe(run_id: str, folder: str) -> Optional[Dict[str, Any]]:
    lives = state.guarded(folder)  # before the records: a guard that ends in between has written them
    spec = state.read(os.path.join(folder, "spec.json"))
    now = state.read(os.path.join(folder, "state.json"))
    ended = state.read(os.path.join(folder, "exit.json"))
    gang = state.read(os.path.join(folder, "gang.json")) or {}  # what is known of the whole run
    if spec is None or now is None:
        return None
    is_stopped = os.path.exists(os.path.join(folder, "stop.json"))
    nodes = spec["nodes"] + list(gang.get("added", ()))
    first = [failure for failure in (ended or now)["failures"] if failure["attempt"] == now["attempt"]][:1]
    answer: Dict[str, Any] = {
        "run_id": run_id,
        "name": spec["name"],
        "started_at": spec["created_at"],
        "ended_at": (ended or {}).get("at"),
        "by": spec["by"],
        "script": script_of(spec["command"], spec.get("launcher")),
        "node": spec["node"],
        "host": spec["host"],
        "hosts": [node["host"] for node in nodes],
        "nprocs": [node["nproc"] for node in nodes],
        "epoch": gang.get("epoch", 0),
        "head": gang.get("head", 0),
        "team": sum(not (node["spare"] or node.get("witness")) for node in spec["nodes"]),  # of the first attempt
        "witness": next((node["host"] for node in spec["nodes"] if node.get("witness")), None),
        "attempt": now["attempt"],
        "exit_code": first[0]["exit_code"] if first else None,
        "signal": first[0]["signal"] if first else None,
        "pid": now["guard"][0] if now["guard"] else None,
        "node_rank": now["node_rank"],  # of the newest attempt; none: a spare that waits
        "first_rank": now["first_rank"],
        "nproc": spec["nproc"],
        "ranks": sum(node["nproc"] for node in nodes),
        "inventory": spec["inventory"],
        "ports": spec["used_ports"],
        "grace": spec.get("grace", 30.0),
        "lease": spec.get("lease", 8.0),
        "shared_output": spec.get("shared_output"),
        "resume": spec.get("resume", "none"),
        "had_outputs": spec.get("had_outputs", []),
        "autostart": spec.get("autostart", "none"),
        "secrets": spec.get("secrets", []),  # names
        "drained": gang.get("drained", []),
        "not_notified": (state.read(os.path.join(folder, "notify.json")) or {}).get("problems", {}),
    }
    if ended is not None:
        answer["state"] = ended["verdict"]["state"]
        answer["verdict"] = ended["verdict"]
        # listing runs must not wait for a shared disk, whose server may hang
        answer["outputs"] = not state.is_witness(spec) and (
            bool(spec.get("shared_output")) or state.has_files(state.output_folder(folder, spec))
        )
        if ended["outcome"] and ended["outcome"]["ok"]:
            answer["exit_code"] = 0
    elif not lives:
        answer["state"] = "lost"  # its guard was killed, or the host was restarted
        answer["rejoins"] = not is_stopped and autostart.rejoins(folder)
    elif is_stopped:
        answer["state"] = "stopping"
    else:
        here = "running" if state.is_witness(spec) else _state_here(spec, now)
        answer["state"] = gang.get("label", here)
        answer.update(waits=gang.get("waits"), suspects=gang.get("suspects", []), unfit=gang.get("unfit", {}))
    return answer


def _state_here(spec: Dict[str, Any], now: Dict[str, Any]) -> str:
    phase = AttemptPhase(now["phase"])
    has_no_ranks = now["node_rank"] is None and phase is not AttemptPhase.RUNNING
    in_first_team = [not node["spare"] for node in spec["nodes"]][spec["node"] :][:1] == [True]
    if has_no_ranks and (now["attempt"] or not in_first_team):  # a spare, or a host that has been away
        return "waiting"
    return STATES[phase]


def script_of(command: List[str], launcher: Any) -> str:
    """The script of the command: `train.py`, or `-m` and a module. Of another program: its first words."""
    words = [word for word in command[1:] if word != "-u"]
    if words[:1] == ["-c"] and len(words) > 2:
        words = words[2:]
        if not isinstance(launcher, dict) or launcher.get("name") != "accelerate":
            return " ".join(words)[:SCRIPT_MOST]
        begins = (number for number, word in enumerate(words) if word in ("-m", "--module") or word.endswith(".py"))
        words = words[next(begins, 0) :]  # without the flags of accelerate
    return " ".join(words[: 2 if words[:1] in (["-m"], ["--module"]) else 1])[:SCRIPT_MOST]


def record(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """All that is kept of a run but its output; no secret is in it. `arguments`: run_id."""
    from ..recorder import history  # `ps` does not need it

    folder = state.run_folder(arguments["run_id"])
    spec = state.read(os.path.join(folder, "spec.json"))
    return {
        "run": describe(arguments["run_id"], folder),
        "spec": spec,
        "folder": folder,
        "output": _output(folder, spec),
        "exit": state.read(os.path.join(folder, "exit.json")),
        # only the head has events, unless the hosts can elect another one
        "events": json_lines.read(os.path.join(folder, "gang.jsonl")),
        "waits": json_lines.read(os.path.join(folder, "waits.jsonl")),
        "samples": history.read(folder),
    }


def _output(folder: str, spec: Optional[Dict[str, Any]]) -> Optional[str]:
    """Its folder of outputs; None where it has none, or the record is damaged."""
    try:
        return None if spec is None or state.is_witness(spec) else state.output_folder(folder, spec)
    except state.DAMAGED:
        return None


def listing(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`, all optional: members: whether to list the processes of runs that have a guard; others: whether to
    list the runs of other users; sizes: whether to measure the folders of the runs."""
    rows = []
    for run_id, folder in state.runs():
        if not state.LISTED.match(run_id):
            continue
        run = describe(run_id, folder)
        if run is not None:
            if arguments.get("members") and state.guarded(folder):
                run["members"] = [
                    [process.pid, process.started, processes.command(process.pid)]
                    for process in belonging(run_id, folder)
                ]
            if arguments.get("sizes"):
                run["size"] = _size(folder)
            rows.append(run)
    newest = ledger.newest(LEDGER_MOST)
    others = other_users.runs() if arguments.get("others") else []
    return {"runs": rows, "ledger": newest, "warm": _warm(), "queued": run_queue.waiting(), "others": others}


def _size(folder: str) -> Dict[str, Any]:
    """The bytes that a run takes on this host. Its outputs are None where they are on a disk of all hosts."""
    from . import output_folders  # `prepare` does not need it

    spec = state.read(os.path.join(folder, "spec.json")) or {}
    output = None if spec.get("shared_output") else _output(folder, spec)
    return {
        "record": output_folders.measure(folder)[0],
        "outputs": output_folders.measure(output)[0] if output and os.path.isdir(output) else None,
    }


def _warm() -> List[Dict[str, Any]]:
    """The preloaders that wait for another run."""
    described = []
    for keeper in warm.keepers():
        try:
            described.append(warm.describe(keeper))
        except state.DAMAGED:
            pass
    return described


def guard_of(folder: str) -> Optional[processes.Process]:
    """The guard's identity when it lives in this boot. Once it has no lock, it may keep a preloader (guard/warm.py)."""
    now = state.read(os.path.join(folder, "state.json"))
    try:
        if now is None or now["boot_id"] != state.boot_id() or now["guard"] is None or not state.guarded(folder):
            return None
        guard = processes.Process(*map(int, now["guard"]))
        return guard if processes.alive(guard) else None
    except state.DAMAGED:
        return None
