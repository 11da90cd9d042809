"""Where rank 0 of the earlier runs of a name ran last, as this host knows. Reads only."""

import os
from typing import Any, Dict, List, Optional, Tuple

from ..host import json_lines, state


def earlier_runs(name: str, but: Optional[str] = None) -> List[Tuple[str, Dict[str, Any]]]:
    """(folder, spec) of the runs of this name that this host had a part in, the newest first. `but`: without this."""
    known = [(folder, state.read(os.path.join(folder, "spec.json")) or {}) for _, folder in sorted(state.runs())[::-1]]
    return [(folder, spec) for folder, spec in known if spec.get("name") == name and spec.get("run_id") != but]


def look(name: str) -> Optional[Dict[str, Any]]:
    """The `host` where rank 0 of the newest run of this name ran in its newest attempt, and whether it is this one.

    `newest`: when a file in the output folder of that name was last written here (Unix time, s); None: it has no file.
    None: this host knows of no attempt, or the outputs are on a disk of all hosts.
    """
    for folder, spec in earlier_runs(name):
        try:
            number = _leader_of_newest_attempt(folder, spec)
            if number is not None:
                return None if spec.get("shared_output") else _describe(folder, spec, number)
        except state.DAMAGED:
            continue
    return None


def _describe(folder: str, spec: Dict[str, Any], number: int) -> Dict[str, Any]:
    added = (state.read(os.path.join(folder, "gang.json")) or {}).get("added", [])
    return {
        "run_id": spec["run_id"],
        "host": [*spec["nodes"], *added][number]["host"],
        "here": number == spec["node"],
        "newest": None if state.is_witness(spec) else _newest(state.output_folder(folder, spec)),
    }


def _leader_of_newest_attempt(folder: str, spec: Dict[str, Any]) -> Optional[int]:
    """The number of the node that had rank 0: the head of that time. None: the run has begun no attempt."""
    head, led, newest = 0, None, 0
    for event in json_lines.read(os.path.join(folder, "gang.jsonl")):  # where hosts elect a head, all have it
        kind, fields = event["event"], event["fields"]
        if kind == "Elected":
            head = fields["node"]
        elif kind == "Started" and fields["attempt"] > newest:
            led, newest = head, fields["attempt"]
    if led is not None:
        return led
    now = state.read(os.path.join(folder, "state.json")) or {}
    # a spare may never have had ranks
    has_begun = now.get("attempt") or (now.get("committed") and spec["nodes"][spec["node"]]["spare"])
    return 0 if has_begun else None


def _newest(output: str) -> Optional[float]:
    newest: Optional[float] = None
    for folder, below, names in os.walk(output):
        if folder == output:
            below[:] = [name for name in below if not name.startswith(state.OWN_OUTPUT)]
            names = [name for name in names if not name.startswith(state.OWN_OUTPUT)]
        for name in names:
            try:
                written = os.lstat(os.path.join(folder, name)).st_mtime
            except OSError:
                continue
            newest = written if newest is None else max(newest, written)
    return newest
