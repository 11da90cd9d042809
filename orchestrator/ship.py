"""What is sent to the hosts: the node program and a snapshot of the user's code, each named by the hash of its content.

Reads files and asks git which ones belong to the code. Sends nothing itself.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, Literal

from .errors import UsageError
from .gitignore import Gitignore
from .naming import RUN_ID
from .node.unpack import EXECUTABLE, FILE, LINK, MAX_BYTES, MAX_FILES, Entry, manifest_sha256, stays_inside

GIT_TIMEOUT = 60  # seconds; `git ls-files` takes milliseconds, unless the repository is somebody's whole home

_INSTEAD = (
    "add what is not code to .gitignore, or name what the script needs in run.sync: [paths], "
    "or use workdir: on a disk that all hosts share"
)
_MAIN = b"import sys\n\nfrom node.__main__ import main\n\nraise SystemExit(main(sys.argv[1:]))\n"

_OF_ITS_OWN = ("pyvenv.cfg", ".gitignore")  # a virtual environment; results that were brought here
_REPORT = re.compile(RUN_ID.pattern + r"\.(html|json)")  # as `report` calls what it writes

Sync = Literal["auto", "none"] | tuple[str, ...]


# --- the node program


@dataclass(frozen=True)
class NodeProgram:
    sha256: str
    data: bytes  # a zip that Python runs as it is


def node_program() -> NodeProgram:
    """orchestrator/node as one zip: the package `node` and a `__main__.py`. The same sources give the same bytes."""
    folder = Path(__file__).with_name("node")
    sources = {f"node/{file.name}": file.read_bytes() for file in folder.glob("*.py")}
    buffer = io.BytesIO()
    # stored: what deflate makes of it differs between zlib versions, and every start would have to inflate it
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sorted({**sources, "__main__.py": _MAIN}.items()):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, also where it is made on something else
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, source)
    data = buffer.getvalue()
    return NodeProgram(hashlib.sha256(data).hexdigest(), data)


# --- the user's code


@dataclass(frozen=True)
class FileEntry:
    path: str  # below the root, with `/`; bytes that are not UTF-8 as surrogate escapes
    executable: bool
    size: int  # bytes
    sha256: str  # of a file; "" for a link
    target: str | None = None  # of a symbolic link


@dataclass(frozen=True)
class Snapshot:
    """The user's code as it was when looked at. The same paths, executable bits and contents give the same `sha256`."""

    sha256: str
    root: Path
    script: str  # below the root
    workdir: str  # below the root, "." for the root; where the run starts. May hold no file: whoever unpacks makes it
    files: tuple[FileEntry, ...]
    size: int  # bytes of all files
    warnings: tuple[str, ...]  # what was left out, for people
    left_out: tuple[str, ...] = ()  # beside the script or the run's start, and ignored; folders with `/`

    def write_tar(self, out: BinaryIO) -> None:
        """Write the gzipped tar that node/unpack.py reads. Packing reads everything again: do it once for all hosts.

        Raises UsageError when a file is not what it was; no host will accept what has been written by then.
        """
        with (
            gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=1, mtime=0) as zipped,
            tarfile.open(
                fileobj=zipped, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
            ) as archive,
        ):
            for entry in self.files:
                info = tarfile.TarInfo(_on_wire(entry.path))
                if entry.target is not None:
                    info.type, info.linkname = tarfile.SYMTYPE, _on_wire(entry.target)
                    archive.addfile(info)
                else:
                    info.size, info.mode = entry.size, 0o700 if entry.executable else 0o600
                    self._add(archive, info, entry)

    def _add(self, archive: tarfile.TarFile, info: tarfile.TarInfo, entry: FileEntry) -> None:
        path = self.root / entry.path
        changed = f"{_shown(path)}: changed while the code was being sent; run the command again"
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise UsageError(changed) from exc
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UsageError(changed)
        archive.addfile(info, io.BytesIO(data))


def snapshot(script: Path, sync: Sync, base: Path) -> Snapshot | None:
    """What has to be sent for `script` to run elsewhere; None for `none`. `base` is the folder the user called from.

    `auto` takes what git knows of and does not ignore in the script's repository, or without one the script's folder as
    far as .gitignore files do not exclude it. Paths, relative to `base`, are taken whole. The script is always taken;
    never .git, byte code, our reports, sockets, devices, nor (outside of git) virtual environments. Empty folders are
    not kept.
    Raises UsageError, also for more than 200 MB or 20,000 files.
    """
    if sync == "none":
        return None
    base = base.resolve()
    script = _absolute(script, base)
    if script.is_dir():
        raise UsageError(f"{_shown(script)}: a folder; give the script in it, or -m PACKAGE")
    if not script.is_file():
        raise UsageError(f"{_shown(script)}: no such file; {_meant(script, base)}")
    warnings: list[str] = []
    if sync == "auto":
        root, paths = _automatic(script, warnings)
    else:
        root, paths = _chosen(script, tuple(_absolute(Path(path).expanduser(), base) for path in sync), base)
    name = os.path.relpath(script, root)
    files = _Collection(root, warnings)
    for path in _chain_once((name,), paths):
        files.add(path)
    files.check_size()
    entries = tuple(_hashed(root, found) for found in sorted(files.found, key=lambda found: os.fsencode(found.path)))
    workdir = base if base.is_relative_to(root) else script.parent
    return Snapshot(
        sha256=manifest_sha256(map(_manifest_entry, entries)),
        root=root,
        script=name,
        workdir=os.path.relpath(workdir, root),
        files=entries,
        size=files.size,
        warnings=tuple(warnings),
        left_out=tuple(_left_out(root, workdir, entries, warnings)) if sync == "auto" else (),
    )


def _left_out(root: Path, folder: Path, sent: tuple[FileEntry, ...], warnings: list[str]) -> Iterator[str]:
    """Files and folders where the run starts that have no part in what is sent, and of which nothing was said yet."""
    prefix = "" if folder == root else f"{folder.relative_to(root)}/"
    known = {one.path[len(prefix) :].partition("/")[0] for one in sent if one.path.startswith(prefix)}
    with contextlib.suppress(OSError):  # what cannot be looked at is not named
        for child in sorted(os.scandir(folder), key=lambda child: child.name):
            if child.name in known or child.name.startswith(".") or _never_sent(child.name):
                continue
            if any(_shown(child.path) in warning for warning in warnings):
                continue
            if child.is_file(follow_symlinks=False):
                yield child.name
            elif child.is_dir(follow_symlinks=False) and _holds_something(child.path):
                yield f"{child.name}/"


def _holds_something(folder: str) -> bool:
    """Whether a folder is of interest: no virtual environment, no results that were brought here, not empty."""
    if any(os.path.lexists(f"{folder}/{one}") for one in _OF_ITS_OWN):
        return False
    with os.scandir(folder) as listing:
        return any(not _never_sent(child.name) for child in listing)


def _absolute(path: Path, base: Path) -> Path:
    """Without links on the way, but the last name as it is: a link is sent as what its place says."""
    path = base / path
    return path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name


def _automatic(script: Path, warnings: list[str]) -> tuple[Path, Iterator[str]]:
    for folder in script.parents:
        if os.path.lexists(folder / ".git"):
            try:
                return folder, iter(_git_files(folder, warnings))
            except FileNotFoundError:  # there is no git; its ignore files we can read ourselves
                return folder, _walk(folder, ".", ignoring=True)
    return script.parent, _walk(script.parent, ".", ignoring=True)


def _chosen(script: Path, chosen: tuple[Path, ...], base: Path) -> tuple[Path, Iterator[str]]:
    missing = next((path for path in chosen if not os.path.lexists(path)), None)
    if missing is not None:
        raise UsageError(f"{_shown(missing)}: no such file or folder; it is named in run.sync")
    # the folder of the call as well, if it is above the script: relative paths in the script's arguments mean that one
    folders = [path if path.is_dir() else path.parent for path in (*chosen, script)]
    root = Path(os.path.commonpath([*folders, *([base] if script.is_relative_to(base) else [])]))
    return root, (
        name
        for path in chosen
        for name in (
            _walk(root, os.path.relpath(path, root), ignoring=False)
            if path.is_dir() and not path.is_symlink()
            else (os.path.relpath(path, root),)
        )
    )


def _git_files(top: Path, warnings: list[str]) -> list[str]:
    """The files of a work tree that git tracks or would; those of its submodules and nested repositories too."""
    # a hook or an outer git may have set where its own repository is
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    advice = "mend that, or name what the script needs in run.sync: [paths]"
    try:
        done = subprocess.run(command, cwd=top, env=environment, capture_output=True, timeout=GIT_TIMEOUT)
    except subprocess.TimeoutExpired as exc:
        raise UsageError(f"{_shown(top)}: git did not list its files within {GIT_TIMEOUT} s; {_INSTEAD}") from exc
    if done.returncode != 0:
        said = done.stderr.decode(errors="backslashreplace").strip()
        raise UsageError(f"{_shown(top)}: git could not list its files: {said}; {advice}")
    paths = []
    for path in map(os.fsdecode, done.stdout.split(b"\0")):
        inner = top / path
        if not path or not inner.is_dir() or inner.is_symlink():
            paths += [path] if path else []
        elif os.path.lexists(inner / ".git"):
            paths += [f"{path.rstrip('/')}/{name}" for name in _git_files(inner, warnings)]
        else:
            warnings.append(f"{_shown(inner)}: a submodule without its files; git submodule update --init brings them")
    return paths


def _walk(root: Path, start: str, ignoring: bool) -> Iterator[str]:
    """The files below root/start, as paths below the root; `ignoring`: less what .gitignore files exclude."""
    pending: list[tuple[str, tuple[tuple[str, Gitignore], ...]]] = [("" if start == "." else f"{start}/", ())]
    while pending:
        prefix, ignores = pending.pop()
        folder = root / prefix
        try:
            with os.scandir(folder) as listing:
                children = sorted(listing, key=lambda child: child.name, reverse=True)
        except OSError as exc:
            raise UsageError(f"{_shown(folder)}: cannot be listed: {exc.strerror}; {_INSTEAD}") from exc
        names = {child.name for child in children}
        if "pyvenv.cfg" in names:
            continue  # a virtual environment works where it was made only
        if ignoring and ".gitignore" in names:
            ignores = ((prefix, _gitignore(folder / ".gitignore")), *ignores)
        for child in children:
            is_folder = child.is_dir(follow_symlinks=False)
            path = prefix + child.name + ("/" if is_folder else "")
            if _never_sent(child.name) or _ignored(path, ignores):
                continue
            if is_folder:
                pending.append((path, ignores))
            else:
                yield path


def _gitignore(file: Path) -> Gitignore:
    try:
        return Gitignore(file.read_bytes())
    except OSError as exc:
        raise UsageError(f"{_shown(file)}: cannot be read: {exc.strerror}; make it readable, or {_INSTEAD}") from exc


def _ignored(path: str, ignores: tuple[tuple[str, Gitignore], ...]) -> bool:
    said = (ignore.excludes(path[len(prefix) :]) for prefix, ignore in ignores)  # the nearest first: it decides
    return next((excluded for excluded in said if excluded is not None), False)


def _never_sent(name: str) -> bool:
    return name in (".git", "__pycache__") or name.endswith(".pyc") or _REPORT.fullmatch(name) is not None


def make_results_folder(folder: Path) -> None:
    """Make a folder for what comes from the hosts, unless it is there: one that git passes by, and so do snapshots.

    Else the outputs of one run would travel with the code of the next. Raises OSError.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text("# made by ddp-orch: results of a run\n*\n", encoding="ascii")


def _chain_once(*sequences: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()  # git lists a file in conflict once per side; paths in run.sync may overlap
    for sequence in sequences:
        for path in sequence:
            if path not in seen:
                seen.add(path)
                yield path


@dataclass(frozen=True)
class _Found:
    path: str
    size: int
    executable: bool
    target: str | None


class _Collection:
    """The files to be sent. Refuses one too many as soon as it comes: nobody's whole home is looked through."""

    def __init__(self, root: Path, warnings: list[str]) -> None:
        self.found: list[_Found] = []
        self.size = 0
        self._root = root
        self._warnings = warnings

    def add(self, path: str) -> None:
        if any(map(_never_sent, path.split("/"))):
            return
        try:
            found = self._look(path)
        except OSError as exc:
            raise UsageError(f"{_shown(self._root / path)}: cannot be read: {exc.strerror}; {_INSTEAD}") from exc
        if found is None:
            return
        self.found.append(found)
        self.size += found.size
        if len(self.found) > MAX_FILES:
            raise self._too_much(f"{MAX_FILES:,} files")

    def check_size(self) -> None:
        """Once all files are known, so that the largest can be named."""
        if self.size > MAX_BYTES:
            raise self._too_much(f"{MAX_BYTES // 1_000_000} MB")

    def _look(self, path: str) -> _Found | None:
        full = self._root / path
        try:
            status = full.lstat()
        except FileNotFoundError:
            return None  # git still lists a file that was deleted
        if stat.S_ISLNK(status.st_mode):
            target = str(full.readlink())
            if stays_inside(os.fsencode(path), os.fsencode(target)):
                return _Found(path, 0, False, target)
            if not full.is_file():
                self._warnings.append(f"{_shown(full)} is not sent: a link out of the code, to {_shown(target)}")
                return None
            status = full.stat()  # the content of what it leads to goes in its place
        if not stat.S_ISREG(status.st_mode):
            self._warnings.append(f"{_shown(full)} is not sent: neither a file nor a link")
            return None
        return _Found(path, status.st_size, bool(status.st_mode & stat.S_IXUSR), None)

    def _too_much(self, limit: str) -> UsageError:
        largest = sorted(self.found, key=lambda found: (-found.size, found.path))[:5]
        named = ", ".join(f"{_shown(found.path)} ({found.size / 1e6:.1f} MB)" for found in largest)
        return UsageError(f"{_shown(self._root)}: the code to send is more than {limit}; largest: {named}; {_INSTEAD}")


def _hashed(root: Path, found: _Found) -> FileEntry:
    if found.target is not None:
        return FileEntry(found.path, False, 0, "", found.target)
    path = root / found.path
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{_shown(path)}: cannot be read: {exc.strerror}; make it readable, or {_INSTEAD}") from exc
    if len(data) != found.size:
        raise UsageError(f"{_shown(path)}: changes while it is read; run the command again, or {_INSTEAD}")
    return FileEntry(found.path, found.executable, len(data), hashlib.sha256(data).hexdigest())


def _manifest_entry(entry: FileEntry) -> Entry:
    path = os.fsencode(entry.path)
    if entry.target is not None:
        return Entry(path, LINK, os.fsencode(entry.target))
    return Entry(path, EXECUTABLE if entry.executable else FILE, entry.sha256.encode("ascii"))


def _on_wire(path: str) -> str:
    """For tarfile, which encodes as UTF-8: so that the bytes are those of the file system, whatever our locale is."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _meant(script: Path, base: Path) -> str:
    name = script.name
    if name.startswith("-"):
        return "the first word behind `--` is a script, -m and a module, or a flag such as --lr"
    if re.fullmatch(r"python[\d.]*|torchrun", name):
        return f"give the script alone, as {name} is started by itself"
    siblings = [one.stem for one in script.parent.glob("*.py") if one.is_file()] if script.parent.is_dir() else []
    if close := get_close_matches(script.stem, siblings, 1):
        meant = script.with_name(f"{close[0]}.py")
        return f"did you mean {_shown(os.path.relpath(meant, base))}?"
    return f"the script is looked for below {_shown(base)}"


def _shown(path: str | Path) -> str:
    """For messages: without the surrogates that no stream would print."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
