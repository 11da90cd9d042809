"""What a run has written on this host: listed by pattern, and sent file by file. Follows no link, changes no file.

These are its output folder, $DDP_ORCH_OUTPUT_DIR, and below `code/` the files written to relative paths: new or
changed files in its copy of the code.
"""

import fnmatch
import hashlib
import json
import os
import stat
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ..host import beside_code, state
from ..host.beside_code import Code
from ..resume.output_tree import INCOMING
from . import wire

MOST_LOOKED_AT = 50_000  # files, at the end of a run
MAX_LISTING = 2 * 1024 * 1024  # bytes of JSON: a listing travels in one header

CODE = "code"  # the folder that files beside the code are shown in

Emit = Callable[[Dict[str, Any], bytes], None]


def listing(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The regular files that match: `files`, each [path, size, mtime in ns]; `links` are the links left out.

    `arguments`: run_id or name, pattern, parts ("output", "code", or both). `written`: a digest of the files beside
    the code, for `fetched`.
    """
    output, code = _roots(arguments)
    pattern = [part for part in arguments["pattern"].split("/") if part not in ("", ".")]
    files: List[List[Any]] = []
    links = 0
    size = 0
    for path, full in _all(output, code, arguments["parts"]):
        if not matches(path.split("/"), pattern):
            continue
        try:
            status = os.lstat(full)
        except FileNotFoundError:
            continue  # the run has not ended
        links += stat.S_ISLNK(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            files.append([path, status.st_size, status.st_mtime_ns])
            size += len(json.dumps(files[-1]))
            if size > MAX_LISTING:
                raise wire.Refused("unknown", "too many files (over %d): give a PATTERN of fewer" % len(files))
    return {"files": files, "links": links, "written": _digest(code) if code else None}


def fetched(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Remember that somebody has the files beside the code. `arguments`: run_id, written (of the listing)."""
    folder = state.run_folder(arguments["run_id"])
    if os.path.isdir(folder):
        state.write(os.path.join(folder, "fetched.json"), {"written": arguments["written"]})
    return {}


def unfetched(folder: str) -> bool:
    """Whether a run has written files beside its code that nobody has fetched as they are now."""
    code = beside_code.find(folder, state.read(os.path.join(folder, "spec.json")))
    if code is None or next(beside_code.written(code), None) is None:
        return False
    known = state.read(os.path.join(folder, "fetched.json")) or {}
    return bool(known.get("written") != _digest(code))


def stray_outputs(folder: str) -> Optional[Dict[str, Any]]:
    """What a run has written beside its code: folder, count, files (some). None: nothing, or in a workdir."""
    code = beside_code.find(folder, state.read(os.path.join(folder, "spec.json")))
    paths = sorted(beside_code.written(code, MOST_LOOKED_AT)) if code else []
    return {"folder": code[0], "count": len(paths), "files": paths[:3]} if code and paths else None


def _digest(code: Code) -> Optional[str]:
    """The digest of the names, sizes and times of the files beside the code. None if there are none."""
    entries = []
    for path in beside_code.written(code):
        try:
            known = os.lstat(os.path.join(code[0], path))
        except FileNotFoundError:
            continue
        entries.append([path, known.st_size, known.st_mtime_ns])
    return hashlib.sha256(json.dumps(sorted(entries)).encode("ascii")).hexdigest() if entries else None


def matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """`*` and the like within a name, `**` for any folders; a pattern that names a folder takes all below it."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(matches(path[start:], pattern[1:]) for start in range(len(path)))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and matches(path[1:], pattern[1:])


def send(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Send files: of each, numbered as asked for, its parts, then its end or an error."""
    output, code = _roots(arguments)
    for number, path in enumerate(arguments["paths"]):
        try:
            _send(_full(path, output, code), number, emit)
        except BrokenPipeError:
            raise
        except OSError as error:
            emit({"file": number, "error": error.strerror or str(error)}, b"")
    return {}


def _send(path: str, number: int, emit: Emit) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # not stuck on a FIFO
    with os.fdopen(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            emit({"file": number, "error": "no longer a file"}, b"")
            return
        left = status.st_size  # what is appended meanwhile is for the next time
        while left:
            data = file.read(min(left, wire.MAX_PAYLOAD))
            if not data:
                emit({"file": number, "error": "it became shorter while it was read; try again"}, b"")
                return
            left -= len(data)
            emit({"file": number}, data)
        emit({"file": number, "end": True, "mtime": status.st_mtime_ns}, b"")


def _roots(arguments: Dict[str, Any]) -> Tuple[str, Optional[Code]]:
    """The output folder of `run_id` and its code, or the output folder called `name`, whose run is no longer known."""
    name = arguments.get("name")
    if name is None:
        folder = state.run_folder(arguments["run_id"])
        spec = state.read(os.path.join(folder, "spec.json"))
        if spec is None:
            raise wire.Refused("unknown", "run %s is not known here" % arguments["run_id"])
        return state.output_folder(folder, spec), beside_code.find(folder, spec)
    if name in ("", ".", "..") or "/" in name:
        raise wire.Refused("unknown", "%r is not the name of a run" % name)
    folders = [os.path.join(home, "out", name) for home in state.homes()]
    return next(filter(os.path.isdir, folders), folders[0]), None


def _all(output: str, code: Optional[Code], parts: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """(path as it is listed, path here) of all that is no folder."""
    for path in _walk(output, "") if "output" in parts else ():
        if path not in state.OUTPUT_MARKS and path.split("/")[0] != INCOMING:
            yield path, os.path.join(output, path)
    for path in sorted(beside_code.written(code)) if code and "code" in parts else ():
        yield _shown_below(output) + "/" + path, os.path.join(code[0] if code else "", path)


def _full(path: str, output: str, code: Optional[Code]) -> str:
    """The path here of a file as it is listed."""
    top, _, rest = path.partition("/")
    if code and top == _shown_below(output):
        return os.path.join(code[0], rest)
    return os.path.join(output, path)


def _shown_below(output: str) -> str:
    """The folder that files beside the code are listed in: none that the output folder has."""
    name = CODE
    while os.path.lexists(os.path.join(output, name)):
        name += "_"
    return name


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
