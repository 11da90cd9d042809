"""Which ended runs `run.keep` does not keep on this host, and their removal. See runs/pruning.py for who decides.

The controller asks all hosts of a run, and has it removed from all of them or from none. Never touched: runs whose
guard lives, what they need, and output folders, but for those of runs without a name where `keep.outputs` says so.
"""

import calendar
import glob
import math
import os
import re
import shutil
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..guard import autostart
from ..host import memory_folder, state
from . import output_folders, outputs

BRIEF = 60.0  # s
BY_CHECK = "check --deep"  # who has started a small run that measures the hosts
BY_WATCH = "up --watch"  # who has stopped a run to start it again with other code
UNFINISHED_AGE = 3600.0  # s; a run that is being prepared has no guard yet, and nothing takes that long
REJOIN_AGE = 7 * 86400.0  # s; the same for a run that this host rejoins at its next boot, after it was off
HOST_ID = re.compile(r"[0-9a-f]{12}\Z")
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:%-]{0,253}\Z")
EXPIRED_AFTER = 2  # times `days`: from then on a run does not wait for hosts that cannot be asked


def survey(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The ended runs to remove from this host: see `look`. `arguments`: keep, only (run ids, or null)."""
    return look(arguments["keep"], arguments["only"])


def look(keep: Dict[str, Any], only: Optional[Sequence[str]] = None) -> Dict[str, Any]:
    """`due`: the ended runs that `keep` does not keep, or those of `only`; `others`: ids of all other runs here.

    Each of `due` has its id, node and hosts (those of the run as far as this host knows), `expired`: whether it may be
    removed though other hosts cannot be asked, and `unfetched`: the bytes that it takes if it wrote files beside its
    code that were not fetched, or null.
    """
    over = _newest_first(only or ())
    strangers = _due_strangers(keep)
    if only is None:
        due = [folder for folder in _due(over, keep) + strangers if _is_listed(folder)]
    else:
        due = [folder for _, folder in over if os.path.basename(folder) in only]
    oldest = time.time() - EXPIRED_AFTER * keep["days"] * 86400
    ends = {folder: at for at, folder in over}
    return {
        "due": [_describe(folder, folder in ends and ends[folder] < oldest) for folder in sorted(due)],
        "others": sorted(run_id for run_id, folder in state.runs() if folder not in due and _is_listed(folder)),
    }


def prune(arguments: Dict[str, Any], program: str) -> Dict[str, Any]:
    """Remove the ended runs with these ids, whatever files they have. `arguments`: runs, and keep: see `tidy`, or null.

    Who asks knows that they have ended: this host may have been off then, so that it has no guard and no record of it.
    """
    run_ids, keep = arguments["runs"], arguments["keep"]
    over = [folder for home in [*state.homes(), *_strangers()] for _, folder in _over(home, run_ids)]
    gone = [folder for folder in over if os.path.basename(folder) in run_ids]
    freed = _remove_runs(gone)
    more: Dict[str, Any] = {"unused": 0, "outputs": [], "freed": 0} if keep is None else tidy(keep, program)
    runs = sorted(map(os.path.basename, gone))
    return dict(more, runs=runs, freed=freed + more["freed"], left=len(_newest_first()))


def tidy(keep: Dict[str, Any], program: str) -> Dict[str, Any]:
    """Remove what no other host has a say in: code and node programs unused for `days`, runs that no command lists, and
    outputs. Gives how many were `unused`, the names of `outputs`, and `freed` in bytes.

    `program` is the node program that runs this.
    """
    oldest = time.time() - keep["days"] * 86400
    due = _due(_newest_first(), keep) + _due_strangers(keep)
    freed = _remove_runs([folder for folder in due if not _is_listed(folder)])
    os.utime(program)  # in use
    code, base = state.folder("code"), state.base()
    # of other hosts too, if they share the state folder
    needed = {name for folder in glob.glob(os.path.join(base, "*", "runs", "*")) for name in _needs(folder)}
    snapshots = [os.path.join(code, name) for name in os.listdir(code)]
    programs = [os.path.join(base, name) for name in os.listdir(base) if name.startswith("node-")]
    unused = [path for path in snapshots + programs if os.path.basename(path) not in needed and _mtime(path) < oldest]
    freed += sum(map(_remove, unused))
    freed += sum(_remove(home) for home in _strangers() if _is_empty(home) and _last_used(home) < oldest)
    of_outputs: Dict[str, Any] = {"removed": [], "freed": 0}
    if keep.get("outputs"):
        of_outputs = output_folders.retire(keep["outputs"])
    return {"unused": len(unused), "outputs": of_outputs["removed"], "freed": freed + of_outputs["freed"]}


def _newest_first(ended: Sequence[str] = ()) -> List[Tuple[float, str]]:
    """The ended runs of this host: see `_over`."""
    return sorted(run for home in state.homes() for run in _over(home, ended))[::-1]


def _due(over: List[Tuple[float, str]], keep: Dict[str, Any]) -> List[str]:
    """The folders of more than `runs` runs, and of those older than `days`. `over`: the newest first.

    Runs shorter than a minute have a quota of their own, so that an hour of failed starts does not remove the logs of
    a week's run. Of the runs of one name that `up --watch` has stopped, the newest is kept; so is that of checks, which
    do not count.
    """
    oldest = time.time() - keep["days"] * 86400
    replaced = _replaced(over)
    checks = [(at, folder) for at, folder in over if _is_check(folder)]
    due = [*replaced, *(folder for number, (at, folder) in enumerate(checks) if number or at < oldest)]
    others = [run for run in over if run[1] not in replaced and run not in checks]
    for brief in (True, False):
        alike = [(at, folder) for at, folder in others if _is_brief(at, folder) == brief]
        due += [folder for number, (at, folder) in enumerate(alike) if number >= keep["runs"] or at < oldest]
    return due


def _due_strangers(keep: Dict[str, Any]) -> List[str]:
    oldest = time.time() - keep["days"] * 86400
    return [folder for home in _strangers() for at, folder in _over(home) if at < oldest]


def _describe(folder: str, is_old: bool) -> Dict[str, Any]:
    """A run of `due`. One that was never more than prepared, or whose record is damaged, has no node and no hosts."""
    node, hosts = _place(folder)
    return {
        "run_id": os.path.basename(folder),
        "node": node,
        "hosts": hosts,
        "expired": is_old and _knows_end(folder),
        "unfetched": _size(folder) if outputs.unfetched(folder) else None,
    }


def _place(folder: str) -> Tuple[Optional[int], List[str]]:
    """The node of this host in the run, and the hosts of the run."""
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    try:
        added = (state.read(os.path.join(folder, "gang.json")) or {}).get("added", [])
        hosts = [str(node["host"]) for node in spec["nodes"] + list(added)]
        is_whole = type(spec["node"]) is int and 0 <= spec["node"] < len(hosts) and all(map(HOST_NAME.match, hosts))
    except state.DAMAGED:
        is_whole = False
    return (spec["node"], hosts) if is_whole else (None, [])


def _knows_end(folder: str) -> bool:
    """Whether the run has ended on all its hosts, as this one knows. Without it, the run may have continued."""
    verdict = _object(_object(state.read(os.path.join(folder, "exit.json"))).get("verdict"))
    return bool(verdict) and not verdict.get("left")


def _is_listed(folder: str) -> bool:
    return state.LISTED.match(os.path.basename(folder)) is not None


def _remove_runs(folders: Sequence[str]) -> int:
    for folder in folders:
        memory_folder.remove_left(state.read(os.path.join(folder, "spec.json")) or {})
    return sum(map(_remove, folders))


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
            longest = REJOIN_AGE if autostart.rejoins(folder) else UNFINISHED_AGE
            at = last if time.time() - last > longest or os.path.basename(folder) in ended else None
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


def _is_check(folder: str) -> bool:
    return _object(state.read(os.path.join(folder, "spec.json"))).get("by") == BY_CHECK


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
