"""The containers of a run on this host: find and remove them. Only those of engines that need it are listed."""

import os
import resource
import time
from typing import Any, Dict, List, Optional

from . import engines, state
from .run_command import output_of

LIST_WINDOW = 20.0  # s
REMOVE_WINDOW = 20.0  # s


def here() -> engines.Here:
    """What command lines of engines depend on."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return engines.Here(
        uid=os.geteuid(),
        gid=os.getegid(),
        message_queues=os.path.ismount("/dev/mqueue"),
        may_lock_memory=os.geteuid() == 0 or hard == resource.RLIM_INFINITY,
        infiniband=os.path.isdir("/dev/infiniband"),
    )


def engine_of(folder: str) -> Optional[str]:
    """The engine that starts the containers of a run; None: it has none, or its engine has no records of them."""
    container = (state.read(os.path.join(folder, "spec.json")) or {}).get("container")
    try:
        engine = engines.ENGINES.get(container["engine"]) if container else None
    except state.DAMAGED:
        return None
    return engine.name if engine is not None and engine.records else None


def find(folder: str) -> List[str]:
    """The ids of the containers of a run."""
    engine = engine_of(folder)
    return [] if engine is None else output_of(engines.list_argv(engine, folder), LIST_WINDOW).split()


def remove(folder: str) -> List[Dict[str, Any]]:
    """Remove the containers of a run. Returns those that are left, as sweep() returns processes."""
    engine = engine_of(folder)
    if engine is None:
        return []
    deadline = time.monotonic() + REMOVE_WINDOW
    while True:
        ids = find(folder)
        if not ids or time.monotonic() > deadline:
            return [{"pid": None, "cmd": "%s container %s" % (engine, each[:12]), "container": each} for each in ids]
        output_of(engines.remove_argv(engine, ids), REMOVE_WINDOW)


def main(arguments: List[str]) -> int:
    """Verb `remove-containers FOLDER`."""
    return 1 if remove(arguments[0]) else 0
