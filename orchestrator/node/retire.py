"""What is kept on a host of runs that are over, and what is removed: `run.keep`, at every launch and by `prune`.

Never touched: runs whose guard lives, what they need, and the output folders of all runs.
"""

import glob
import os
import shutil
import time
from typing import Any, Dict, List, Optional, Tuple

from . import runs, state

BRIEF = 60.0  # s
UNFINISHED_AGE = 3600.0  # s; a run that is being prepared has no guard yet, and nothing takes that long


def retire(keep: Dict[str, Any], program: str) -> Dict[str, Any]:
    """Forget runs that are over (more than `runs` of them, or older than `days`), and what was not used for as long.

    Brief ones are counted apart: an hour of attempts that fail at their start does not cost the logs of a week's run.
    `program` is the node program that runs this. Gives what was removed, and `freed` in bytes.
    """
    oldest = time.time() - keep["days"] * 86400
    over = sorted(_over(), reverse=True)
    gone = []
    for brief in (True, False):
        alike = [(at, folder) for at, folder in over if _is_brief(at, folder) == brief]
        gone += [folder for number, (at, folder) in enumerate(alike) if number >= keep["runs"] or at < oldest]
    freed = sum(map(_remove, gone))
    os.utime(program)  # in use
    code, base = state.folder("code"), state.base()
    # of other hosts too, if they share the state folder
    needed = {_program(folder) for folder in glob.glob(os.path.join(base, "*", "runs", "*"))}
    snapshots = [os.path.join(code, name) for name in os.listdir(code)]
    programs = [os.path.join(base, name) for name in os.listdir(base) if name.startswith("node-")]
    unused = [path for path in snapshots + programs if os.path.basename(path) not in needed and _mtime(path) < oldest]
    freed += sum(map(_remove, unused))
    left = len(over) - len(gone)
    return {"runs": sorted(map(os.path.basename, gone)), "unused": len(unused), "freed": freed, "left": left}


def _over() -> List[Tuple[float, str]]:
    """When each run that is over ended, and its folder. One that was lost, or never whole, ended when last written."""
    found = []
    for _, folder in state.runs():
        record = state.read(os.path.join(folder, "exit.json"))
        at: Optional[float] = None
        if record is not None:
            at = float(record.get("at", 0))
        elif not runs.guarded(folder):
            last = max(_mtime(path) for path in [folder] + [os.path.join(folder, name) for name in os.listdir(folder)])
            at = last if time.time() - last > UNFINISHED_AGE else None
        if at is not None and not runs.guarded(folder):
            found.append((at, folder))
    return found


def _is_brief(ended: float, folder: str) -> bool:
    try:
        return ended - os.stat(os.path.join(folder, "spec.json")).st_mtime < BRIEF
    except OSError:
        return True  # it has never been more than prepared


def _program(folder: str) -> str:
    """The node program that a run was started with: its guard and recorder import from it, and start it again."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    return os.path.basename(str(spec.get("program", "")))


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()  # it has just gone: not ours to remove


def _remove(path: str) -> int:
    """Remove a folder. Gives the bytes that its files took."""
    size = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    shutil.rmtree(path, ignore_errors=True)
    return 0 if os.path.lexists(path) else size
