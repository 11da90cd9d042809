"""What a host shows of the whole run, which its own processes do not tell. A full disk is no error.

gang.json is for `ps`, and has the newest state. waits.jsonl is for `events`: for whom this host has waited, and when.
"""

import contextlib
import json
import os
import time
from typing import Any, Dict, List, Optional, Sequence

from ..host import json_lines, state

NAME, WAITS = "gang.json", "waits.jsonl"
WAITS_MOST = 128 * 1024  # bytes


def show(
    folder: str,
    label: Optional[str],
    leadership: Dict[str, int],
    hosts: Sequence[Dict[str, Any]] = (),
    waits: Optional[Dict[str, Any]] = None,
    suspects: Sequence[str] = (),
    unfit: Optional[Dict[str, List[str]]] = None,
    drained: Sequence[str] = (),
) -> None:
    """`leadership`: `head epoch` of a run that can elect another head. `hosts`: see `added`. `waits`: see `waiting`.

    `suspects`: hosts that are silent or cut off, but not lost yet. `unfit`: see gang/gate.py. `drained`: hosts that
    have left the run, which do not know that if they were off.
    """
    record: Dict[str, Any] = dict(leadership)
    more = {"label": label, "added": list(hosts), "waits": waits, "suspects": list(suspects), "unfit": unfit}
    more["drained"] = list(drained)
    record.update((name, value) for name, value in more.items() if value)
    with contextlib.suppress(OSError):
        if record:
            state.replace(os.path.join(folder, NAME), record)
        else:
            os.unlink(os.path.join(folder, NAME))
    with contextlib.suppress(OSError):
        _note_wait(os.path.join(folder, WAITS), waits)


def _note_wait(path: str, waits: Optional[Dict[str, Any]]) -> None:
    """If a wait begins, changes or ends."""
    hosts = waits["hosts"] if waits else []
    known = json_lines.read(path)
    is_news = hosts != (known[-1].get("hosts") if known else [])
    if is_news and (not known or os.path.getsize(path) < WAITS_MOST):
        with open(path, "a", encoding="ascii") as file:
            until = waits["until"] if waits else None
            file.write(json.dumps({"at": time.time(), "hosts": hosts, "until": until}) + "\n")


def waiting(hosts: Sequence[str], until: float, no_majority: bool = False) -> Optional[Dict[str, Any]]:
    """For which hosts a run waits, and until when (Unix time, s). None if it is not known for which.

    `no_majority`: the other hosts are none, so they decide nothing.
    """
    return {"hosts": list(hosts), "until": until, "no_majority": no_majority} if hosts else None


def added(nodes: Sequence[Any], spec: Dict[str, Any]) -> List[Dict[str, Any]]:
    """`nodes`: those of the gang. The first ones are in the spec of this node."""
    return [{"host": node.host, "nproc": node.nproc} for node in nodes[len(spec["nodes"]) :]]
