"""What a host shows `ps` of the whole run, which its own processes do not tell: gang.json. A full disk is no error."""

import contextlib
import os
from typing import Any, Dict, List, Optional, Sequence

from ..host import state

NAME = "gang.json"


def show(
    folder: str,
    label: Optional[str],
    leadership: Dict[str, int],
    hosts: Sequence[Dict[str, Any]] = (),
    waits: Optional[Dict[str, Any]] = None,
    suspects: Sequence[str] = (),
    unfit: Optional[Dict[str, List[str]]] = None,
) -> None:
    """`leadership`: `head epoch` of a run that can elect another head. `hosts`: see `added`. `waits`: see `waiting`.

    `suspects`: hosts that are silent, but not lost yet. `unfit`: see gang/gate.py.
    """
    record: Dict[str, Any] = dict(leadership)
    more = {"label": label, "added": list(hosts), "waits": waits, "suspects": list(suspects), "unfit": unfit}
    record.update((name, value) for name, value in more.items() if value)
    with contextlib.suppress(OSError):
        if record:
            state.replace(os.path.join(folder, NAME), record)
        else:
            os.unlink(os.path.join(folder, NAME))


def waiting(hosts: Sequence[str], until: float) -> Optional[Dict[str, Any]]:
    """For which hosts a run waits, and until when (Unix time, s). None if it is not known for which."""
    return {"hosts": list(hosts), "until": until} if hosts else None


def added(nodes: Sequence[Any], spec: Dict[str, Any]) -> List[Dict[str, Any]]:
    """`nodes`: those of the gang. The first ones are in the spec of this node."""
    return [{"host": node.host, "nproc": node.nproc} for node in nodes[len(spec["nodes"]) :]]
