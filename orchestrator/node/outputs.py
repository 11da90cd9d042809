"""The outputs of a run on this host: listed by pattern, and sent file by file. Follows no link, changes nothing."""

import fnmatch
import json
import os
import stat
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from . import state, wire

MOST_LOOKED_AT = 50_000  # files
MAX_LISTING = 2 * 1024 * 1024  # bytes of JSON: a listing travels in one header

Emit = Callable[[Dict[str, Any], bytes], None]


def listing(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The regular files that match: `files`, each [path, size, mtime in ns]; `links` are the links left out."""
    root = _root(arguments)
    pattern = [part for part in arguments["pattern"].split("/") if part not in ("", ".")]
    files: List[List[Any]] = []
    links = 0
    size = 0
    for path in _walk(root, ""):
        if not matches(path.split("/"), pattern):
            continue
        found = os.lstat(os.path.join(root, path))
        links += stat.S_ISLNK(found.st_mode)
        if stat.S_ISREG(found.st_mode):
            files.append([path, found.st_size, found.st_mtime_ns])
            size += len(json.dumps(files[-1]))
            if size > MAX_LISTING:
                raise wire.Refused("unknown", "too many files (over %d): give a PATTERN of fewer" % len(files))
    return {"files": files, "links": links}


def beside_code(folder: str) -> Optional[Dict[str, Any]]:
    """What a run has written beside its code, in a copy that goes with its record: folder, count, files (some)."""
    spec = state.read(os.path.join(folder, "spec.json"))
    if spec is None or spec["workdir"] is not None or spec["code"] is None:
        return None
    sent, code = os.path.join(state.folder("code"), spec["code"]["sha256"]), os.path.join(folder, "code")
    if not os.path.isdir(sent):
        return None
    found = []
    looked_at = 0
    for parent, _, names in os.walk(code):  # what cannot be looked at is left out
        here = os.path.relpath(parent, code)
        paths = [os.path.normpath(os.path.join(here, name)) for name in names if not name.endswith(".pyc")]
        found += [path for path in paths if not os.path.lexists(os.path.join(sent, path))]
        looked_at += len(names)
        if looked_at > MOST_LOOKED_AT:
            break
    return {"folder": code, "count": len(found), "files": sorted(found)[:3]} if found else None


def matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """`*` and the like within a name, `**` for any folders; a pattern that names a folder takes all below it."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(matches(path[start:], pattern[1:]) for start in range(len(path)))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and matches(path[1:], pattern[1:])


def send(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Send files: of each, numbered as asked for, its parts, then its end or an error."""
    root = _root(arguments)
    for number, path in enumerate(arguments["paths"]):
        try:
            _send(os.path.join(root, path), number, emit)
        except BrokenPipeError:
            raise
        except OSError as error:
            emit({"file": number, "error": error.strerror or str(error)}, b"")
    return {}


def _send(path: str, number: int, emit: Emit) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # not stuck on a FIFO
    with os.fdopen(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            emit({"file": number, "error": "no longer a file"}, b"")
            return
        left = found.st_size  # what is appended meanwhile is for the next time
        while left:
            data = file.read(min(left, wire.MAX_PAYLOAD))
            if not data:
                emit({"file": number, "error": "it became shorter while it was read; try again"}, b"")
                return
            left -= len(data)
            emit({"file": number}, data)
        emit({"file": number, "end": True, "mtime": found.st_mtime_ns}, b"")


def _root(arguments: Dict[str, Any]) -> str:
    """The output folder of `run_id`, or the one called `name`, whose run is known no more."""
    name = arguments.get("name")
    if name is None:
        spec = state.read(os.path.join(state.run_folder(arguments["run_id"]), "spec.json"))
        if spec is None:
            raise wire.Refused("unknown", "run %s is not known here" % arguments["run_id"])
        name = spec["name"]
    if name in ("", ".", "..") or "/" in name:
        raise wire.Refused("unknown", "%r is not the name of a run" % name)
    return os.path.join(state.folder("out"), name)


def _walk(root: str, below: str) -> Iterator[str]:
    """All that is no folder, as paths below the root."""
    try:
        names = sorted(os.listdir(os.path.join(root, below)))
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(below, name)
        full = os.path.join(root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            yield from _walk(root, path)
        elif os.path.lexists(full):
            yield path
