"""Remove ended runs from a host, as `run.keep` says: at every launch, and by `prune`.

Never touched: runs whose guard lives, what they need, and output folders, but for those of runs without a name where
`keep.outputs` says so. A run that wrote files beside its code is kept until they were fetched.
"""

import calendar
import glob
import math
import os
import re
import shutil
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..host import memory_folder, state
from . import output_folders, outputs

BRIEF = 60.0  # s
BY_WATCH = "up --watch"  # who has stopped a run to start it again with other code
UNFINISHED_AGE = 3600.0  # s; a run that is being prepared has no guard yet, and nothing takes that long
HOST_ID = re.compile(r"[0-9a-f]{12}\Z")


def retire(keep: Dict[str, Any], program: str, force: bool = False) -> Dict[str, Any]:
    """Remove ended runs (more than `runs` of them, or older than `days`), and code and node programs unused for `days`.

    Runs shorter than a minute have a quota of their own, so that an hour of failed starts does not remove the logs of
    a week's run. Of the runs of one name that `up --watch` has stopped, the newest is kept.
    `program` is the node program that runs this. `force`: also runs with files that were not fetched. Gives what was
    removed, `freed` in bytes, and the runs that are only kept because of such files.
    """
    oldest = time.time() - keep["days"] * 86400
    over = sorted(run for home in state.homes() for run in _over(home))[::-1]
    replaced = _replaced(over)
    due = list(replaced)
    for brief in (True, False):
        alike = [(at, folder) for at, folder in over if folder not in replaced and _is_brief(at, folder) == brief]
        due += [folder for number, (at, folder) in enumerate(alike) if number >= keep["runs"] or at < oldest]
    strangers = list(_strangers())
    due += [folder for home in strangers for at, folder in _over(home) if at < oldest]
    removed = _remove_runs(due, over, force)
    os.utime(program)  # in use
    code, base = state.folder("code"), state.base()
    # of other hosts too, if they share the state folder
    needed = {name for folder in glob.glob(os.path.join(base, "*", "runs", "*")) for name in _needs(folder)}
    snapshots = [os.path.join(code, name) for name in os.listdir(code)]
    programs = [os.path.join(base, name) for name in os.listdir(base) if name.startswith("node-")]
    unused = [path for path in snapshots + programs if os.path.basename(path) not in needed and _mtime(path) < oldest]
    freed = sum(map(_remove, unused))
    freed += sum(_remove(home) for home in strangers if _is_empty(home) and _last_used(home) < oldest)
    of_outputs = output_folders.retire(keep["outputs"]) if keep.get("outputs") else {"removed": [], "freed": 0}
    freed += removed["freed"] + of_outputs["freed"]
    return dict(removed, unused=len(unused), outputs=of_outputs["removed"], freed=freed)


def remove(run_ids: Sequence[str], force: bool = False) -> Dict[str, Any]:
    """Remove the ended runs with these ids, and nothing else. `force` and the answer: see `retire`.

    Who asks knows that they have ended: this host may have been off then, so that it has no guard and no record of it.
    """
    over = [run for home in state.homes() for run in _over(home, run_ids)]
    return _remove_runs([folder for _, folder in over if os.path.basename(folder) in run_ids], over, force)


def _remove_runs(due: Sequence[str], over: Sequence[Tuple[float, str]], force: bool) -> Dict[str, Any]:
    """The answer of `retire`, as if nothing else were to be removed. `over`: all ended runs."""
    can_be_fetched = [] if force else [folder for folder in due if state.LISTED.match(os.path.basename(folder))]
    unfetched = [folder for folder in can_be_fetched if outputs.unfetched(folder)]
    gone = [folder for folder in due if folder not in unfetched]
    for folder in gone:
        memory_folder.remove(state.read(os.path.join(folder, "spec.json")) or {})
    return {
        "runs": sorted(map(os.path.basename, gone)),
        "unused": 0,
        "outputs": [],
        "freed": sum(map(_remove, gone)),
        "left": len(over) - sum(folder in gone for _, folder in over),
        "unfetched": sorted(map(os.path.basename, unfetched)),
        "unfetched_bytes": sum(map(_size, unfetched)),
    }


def _strangers() -> Iterator[str]:
    """Folders of hosts that used this disk before, such as containers; no other process removes them."""
    base = state.base()
    if state.filesystem(base) not in state.LOCAL_FILESYSTEMS:
        return
    for name in os.listdir(base):
        if HOST_ID.match(name) and name != state.host_id():
            yield os.path.join(base, name)


def _last_used(home: str) -> float:
    """When a session of that host was last there; it may be one that shares this disk."""
    return max(_mtime(path) for path in [home, *glob.glob(os.path.join(home, "*"))])


def _is_empty(home: str) -> bool:
    return not glob.glob(os.path.join(home, "runs", "*")) and not glob.glob(os.path.join(home, "out", "*"))


def _over(home: str, ended: Sequence[str] = ()) -> List[Tuple[float, str]]:
    """When each run that is over ended, and its folder. Without exit.json: when the folder was last written.

    `ended`: runs that are known to be over.
    """
    finished = []
    for folder in glob.glob(os.path.join(home, "runs", "*")):
        if not state.RUN_ID.match(os.path.basename(folder)):
            continue
        record = state.read(os.path.join(folder, "exit.json"))
        at: Optional[float] = None
        if record is not None:
            at = float(record["at"]) if isinstance(record.get("at"), (int, float)) else 0.0
        elif not state.guarded(folder):
            last = max(_mtime(path) for path in [folder] + [os.path.join(folder, name) for name in os.listdir(folder)])
            at = last if time.time() - last > UNFINISHED_AGE or os.path.basename(folder) in ended else None
        if at is not None and not state.guarded(folder):
            finished.append((at, folder))
    return finished


def _replaced(over: List[Tuple[float, str]]) -> List[str]:
    """Runs that `up --watch` has stopped, without the newest of each name. `over`: the newest first."""
    names = set()
    replaced = []
    for _, folder in over:
        verdict = _object(_object(state.read(os.path.join(folder, "exit.json"))).get("verdict"))
        if verdict.get("stopped_by") == BY_WATCH:
            name = str(_object(state.read(os.path.join(folder, "spec.json"))).get("name"))
            if name in names:
                replaced.append(folder)
            names.add(name)
    return replaced


def _object(read: Any) -> Dict[str, Any]:
    """What a damaged record holds instead of an object counts as nothing."""
    return read if isinstance(read, dict) else {}


def _is_brief(ended: float, folder: str) -> bool:
    """Whether the whole run was short. All its hosts decide alike, also one that was away in between."""
    path = os.path.join(folder, "spec.json")
    if not os.path.exists(path):
        return True  # it has never been more than prepared
    record = _object(state.read(os.path.join(folder, "exit.json")))
    if not record or _object(record.get("verdict")).get("left"):
        return False  # the run may have gone on without this host
    # a host that comes back writes spec.json anew; `created_at` is by the clock of another machine, which may be wrong
    return ended - min(_mtime(path), _created(_object(state.read(path)))) < BRIEF


def _created(spec: Dict[str, Any]) -> float:
    """When the run was started, in Unix seconds; infinity if that is unknown."""
    try:
        return float(calendar.timegm(time.strptime(str(spec.get("created_at"))[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return math.inf


def _needs(folder: str) -> Iterator[str]:
    """The node program that a run was started with, which its guard and recorder import from and start again, and the
    code that its own copy is compared with.
    """
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    yield os.path.basename(str(spec.get("program", "")))
    yield str((spec.get("code") or {}).get("sha256", ""))


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()  # it has just gone: not ours to remove


def _remove(path: str) -> int:
    """Remove a folder. Gives the bytes that its files took."""
    size = _size(path)
    shutil.rmtree(path, ignore_errors=True)
    return 0 if os.path.lexists(path) else size


def _size(path: str) -> int:
    """The bytes that the files of a folder take."""
    size = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    return size
