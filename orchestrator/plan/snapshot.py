"""Take a snapshot of the user's code, named by the hash of its content. Reads files; sends nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

from ..errors import UsageError
from ..node.serve.unpack import EXECUTABLE, FILE, LINK, MAX_BYTES, MAX_FILES, Entry, manifest_sha256, stays_inside
from . import commit, git
from .code_files import INSTEAD, is_report, lies_in, list_all, list_code, list_excluded, never_sent, shown
from .commit import Commit

_CREDENTIAL = re.compile(
    r"""(?: ^ | / ) (?:
        \.ssh | \.aws | \.azure | \.kube | \.gnupg | \.docker/config\.json | \.config/gcloud
      | \.netrc | _netrc | \.pgpass | \.pypirc | \.git-credentials
      | \.env (?! [^/]* [._-] (?: example | sample | template | dist | defaults? ) (?: / | $ ) ) [^/]*
      | id_ (?: rsa | dsa | ecdsa | ed25519 ) (?: [._-] [^/]* )?
      | [^/]* \. (?: pem | key | p12 | pfx | ppk )
    ) (?: / | $ )""",
    re.VERBOSE | re.IGNORECASE,
)

_TORCH = re.compile(rb"\btorch\b")

LOOKED_AT = 20  # files of a folder, to find one that is sent
SMALL = 100
"""A file that is so many times smaller than the largest one does not matter."""
AUTO = "auto"  # in run.sync, alone or as one of the paths
Sync = Literal["auto", "none"] | tuple[str, ...]


@dataclass(frozen=True)
class FileEntry:
    path: str  # below the root, with `/`; bytes that are not UTF-8 as surrogate escapes
    executable: bool
    size: int  # bytes
    sha256: str  # of a file; "" for a link
    target: str | None = None  # of a symbolic link
    names_torch: bool = False  # a Python file with the word torch
    blob: str = ""  # by which git names its content


@dataclass(frozen=True)
class Snapshot:
    """The user's code when it was read. The same paths, executable bits and contents give the same `sha256`."""

    sha256: str
    root: Path
    script: str  # below the root
    workdir: str  # below the root, "." for the root; where the run starts. If it has no files, unpacking creates it
    files: tuple[FileEntry, ...]
    size: int  # bytes of all files
    warnings: tuple[str, ...]  # about files that are not sent
    excluded: tuple[str, ...] = ()  # by .gitignore, from `workdir` on, without hidden ones; folders with `/`
    credentials: tuple[str, ...] = ()  # left out, from `root` on
    notes: tuple[str, ...] = ()  # for people, where the rules are not obvious
    commit: Commit | None = None  # None: `root` is not the top of a git repository
    module: str = ""  # what is started, if it is installed on the hosts and not part of the snapshot

    @property
    def names_torch(self) -> bool:
        return bool(self.module) or any(entry.names_torch for entry in self.files)

    def largest(self, count: int) -> tuple[tuple[str, int], ...]:
        """The files and folders in `root` with the most bytes: (name, bytes); folders with `/`."""
        sizes: dict[str, int] = {}
        for entry in self.files:
            name, slash, _ = entry.path.partition("/")
            sizes[name + slash] = sizes.get(name + slash, 0) + entry.size
        largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
        return tuple((shown(name), size) for name, size in largest)

    def write_tar(self, out: BinaryIO) -> None:
        """Write the gzipped tar that node/serve/unpack.py reads. It reads all files again, so pack once for all hosts.

        Raises UsageError if a file has changed; hosts reject the incomplete archive.
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
                    archive.addfile(info, io.BytesIO(self.read(entry)))

    def read(self, entry: FileEntry) -> bytes:
        """The content of a file that is no link. Raises UsageError if it is another one now."""
        path = self.root / entry.path
        changed = f"{shown(path)}: changed while the code was being sent; run the command again"
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise UsageError(changed) from exc
        data = data[: entry.size]  # it may be a log that has grown
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UsageError(changed)
        return data


def snapshot(
    script: Path,
    sync: Sync,
    base: Path,
    sync_base: Path | None = None,
    *,
    package_depth: int = 0,
    private: Path | None = None,
) -> Snapshot | None:
    """The code that `script` needs on the hosts; None if `sync` is `none`.

    The run starts in `base`, and `script` is relative to it. Paths in `sync` are relative to `sync_base` (default:
    `base`). `auto` takes the files that git tracks or would track in the script's repository; without a repository, in
    the folder above the packages of the script, of which there are `package_depth`. Other paths are taken with
    everything in them. The script is always part of the snapshot.
    Never part of it: .git, byte code, virtual environments, results of runs, sockets, devices, empty folders.
    Credentials, the file `private`, and links to outside of the snapshot, are left out unless a path in `sync` names
    them.
    Raises UsageError, also for more than 200 MB or 20,000 files.
    """
    if sync == "none":
        return None
    base = base.resolve()
    sync_base = base if sync_base is None else sync_base.resolve()
    script = _absolute(script, base)
    if script.is_dir():
        raise UsageError(f"{shown(script)}: is a folder; pass a script in it, or -m PACKAGE")
    if not script.is_file():
        raise UsageError(f"{shown(script)}: no such file; {_advise(script, base)}")
    warnings: list[str] = []
    paths = (
        tuple(_absolute(Path(path).expanduser(), sync_base) for path in sync if path != AUTO) if sync != AUTO else ()
    )
    top = _top(script, package_depth, base, sync_base) if AUTO in sync else None
    root = _root(script, base, paths, top)
    files = _Collection(root, [Path(os.path.realpath(script)), *paths, *([top] if top else [])], warnings, private)
    for path in (script, *paths):
        named = _CREDENTIAL.search(os.path.relpath(path, sync_base)) is not None  # with all that is in it
        for inner in list_all(root, path):
            files.add(inner, "" if named else os.path.relpath(root / inner, path))
    if top:
        for inner in list_code(top, warnings):
            files.add(os.path.relpath(top / inner, root), inner)
    files.check_size()
    entries = tuple(_hash(root, file) for file in sorted(files.files, key=lambda file: os.fsencode(file.path)))
    workdir = base if base.is_relative_to(root) else script.parent
    return Snapshot(
        sha256=manifest_sha256(map(_manifest_entry, entries)),
        root=root,
        script=os.path.relpath(script, root),
        workdir=os.path.relpath(workdir, root),
        files=entries,
        size=files.size,
        warnings=tuple(warnings),
        excluded=tuple(list_excluded(top, workdir, {entry.path for entry in entries}, root)) if top else (),
        credentials=tuple(map(shown, sorted(files.credentials))),
        commit=commit.find(root, {entry.path: entry.blob for entry in entries}),
    )


def nothing(folder: Path, note: str) -> Snapshot:
    """A snapshot without files, with which a run starts in an empty folder. `folder`: the one that the user is in."""
    return Snapshot(manifest_sha256(()), folder.resolve(), "", ".", (), 0, (), notes=(note,))


def why_not_sent(folder: Path, path: str, sync_base: Path) -> str | None:
    """Why a file on this machine is not sent, and how to send it; None if it does not exist, or no rule excludes it.

    `path` is relative to `folder`, in which the run starts; paths in run.sync are relative to `sync_base`.
    """
    full = Path(os.path.normpath(folder / path))
    top = next((parent for parent in (folder, *folder.parents) if git.has_repository(parent)), folder)
    if not os.path.lexists(full) or full == top:
        return None
    if not full.is_relative_to(top):
        if Path(path).is_absolute() or full in top.parents:
            return None  # of the hosts, or a word such as `..`
        return (
            f"{shown(path)} exists on this machine but is not sent: it is not in {shown(top)}. Copy it to a folder "
            "of the hosts, and give its absolute path there; or run `git init` in a folder that has both"
        )
    inner = os.path.relpath(full, top)
    if _CREDENTIAL.search(inner):
        why = "its name is that of a credential"
    elif rule := git.exclusion(top, inner):
        why = f"line {rule.line} of {shown(rule.file)} ({shown(rule.pattern)}) excludes it"
    else:
        return None
    entry = shown(os.path.relpath(full, sync_base))
    return f"{shown(path)} exists on this machine but is not sent: {why}. Add it to run.sync: [auto, {entry}]"


def where_sent(folder: Path, path: str) -> str | None:
    """Where ranks find an absolute path of this machine, relative to `folder`, in which the run starts.

    None if it does not exist here, or is not in the code that is sent.
    """
    full = Path(os.path.normpath(path))
    top = next((parent for parent in (folder, *folder.parents) if git.has_repository(parent)), folder)
    if not Path(path).is_absolute() or full == top or not full.is_relative_to(top) or not os.path.lexists(full):
        return None
    files = [full] if not full.is_dir() else [file for file in islice(full.rglob("*"), LOOKED_AT) if file.is_file()]
    inner = (os.path.relpath(file, top) for file in files)
    is_sent = any(not _CREDENTIAL.search(file) and git.exclusion(top, file) is None for file in inner)
    return os.path.relpath(full, folder) if is_sent else None


def _top(script: Path, package_depth: int, base: Path, sync_base: Path) -> Path:
    """The folder whose files are the script's code: the top of its repository, else that above its packages.

    Raises UsageError for a folder without a repository that has much else, such as a home folder.
    """
    for folder in script.parents:
        if git.has_repository(folder):
            return folder
    folder = script.parents[package_depth]
    advice = (
        "move the script into a folder of its own, run `git init` there, or list what it needs in run.sync: [paths]"
    )
    home = Path(os.environ.get("HOME") or "/").resolve()
    if home.is_relative_to(folder):
        what = "is your home folder" if folder == home else "is above your home folder"
    elif all(path != folder and path.is_relative_to(folder) for path in (base, sync_base)):
        what = f"is above {shown(base)}"
    else:
        return folder
    raise UsageError(f"{shown(folder)}: the script's folder {what}, so it is not sent as a whole; {advice}")


def _root(script: Path, base: Path, paths: tuple[Path, ...], top: Path | None) -> Path:
    """The folder that all paths of the snapshot are relative to."""
    if not paths and top:
        return top
    missing = next((path for path in paths if not os.path.lexists(path)), None)
    if missing is not None:
        raise UsageError(f"{shown(missing)}: no such file or folder, but run.sync lists it")
    folders = [path if path.is_dir() else path.parent for path in (*paths, script, *([top] if top else []))]
    # the folder in which the run starts, too, if it is above the script: relative paths in arguments refer to it
    return Path(os.path.commonpath([*folders, *([base] if script.is_relative_to(base) else [])]))


def _absolute(path: Path, base: Path) -> Path:
    """The path without links in its folders. A link at its end is kept, because links are sent as links."""
    path = base / path
    return path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    executable: bool
    target: str | None


class _Collection:
    """The files to send. Raises UsageError as soon as there are too many."""

    def __init__(self, root: Path, sources: Sequence[Path], warnings: list[str], private: Path | None) -> None:
        self.files: list[_File] = []
        self.size = 0
        self.credentials: set[str] = set()
        self._root = root
        self._sources = sources  # the files and folders whose content may be sent
        self._warnings = warnings
        self._private = private
        self._seen: set[str] = set()  # git lists a file in conflict once per side; paths in run.sync may overlap
        self._folders: dict[str, bool] = {}

    def add(self, path: str, unnamed: str) -> None:
        """Add a file. `unnamed`: the part of `path` that run.sync does not name, and that may not name a credential."""
        if path in self._seen or any(map(never_sent, path.split("/"))) or not self._is_here(path):
            return
        if unnamed not in ("", ".") and is_report(self._root / path):
            return
        is_private = unnamed not in ("", ".") and self._root / path == self._private
        if is_private or _CREDENTIAL.search(unnamed):
            self.credentials.add(path)
            return
        self.credentials.discard(path)
        self._seen.add(path)
        try:
            file = self._look(path)
        except OSError as exc:
            raise UsageError(f"{shown(self._root / path)}: cannot be read: {exc.strerror}; {INSTEAD}") from exc
        if file is None:
            return
        self.files.append(file)
        self.size += file.size
        if len(self.files) > MAX_FILES:
            raise self._too_much(f"{MAX_FILES:,} files")

    def _is_here(self, path: str) -> bool:
        """False if a folder of the path is a link: git may list such a file, but treats it as deleted."""
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._folders[folder] = lies_in(self._root, path)
        return self._folders[folder]

    def check_size(self) -> None:
        """Raises UsageError if the files are too large. Call it after the last file, to list the largest ones."""
        if self.size > MAX_BYTES:
            raise self._too_much(f"{MAX_BYTES // 1_000_000} MB")

    def _look(self, path: str) -> _File | None:
        full = self._root / path
        try:
            status = full.lstat()
        except FileNotFoundError:
            return None  # git still lists a file that was deleted
        if stat.S_ISLNK(status.st_mode):
            target = str(full.readlink())
            if stays_inside(os.fsencode(path), os.fsencode(target)):
                return _File(path, 0, False, target)
            if not self._may_be_copied(Path(os.path.realpath(full))):
                self._warnings.append(
                    f"{shown(full)} is not sent: it links to {shown(target)}, outside the code; "
                    "to send the target, add it to run.sync"
                )
                return None
            status = full.stat()  # the content of the target is sent in place of the link
        if not stat.S_ISREG(status.st_mode):
            self._warnings.append(f"{shown(full)} is not sent: neither a file nor a link")
            return None
        return _File(path, status.st_size, bool(status.st_mode & stat.S_IXUSR), None)

    def _may_be_copied(self, real: Path) -> bool:
        """Whether to send the target of a link in its place: only if it is in a folder that is sent anyway."""
        return real.is_file() and any(
            real.is_relative_to(source) and not _CREDENTIAL.search(str(real.relative_to(source)))
            for source in self._sources
        )

    def _too_much(self, limit: str) -> UsageError:
        largest = sorted(self.files, key=lambda file: (-file.size, file.path))[:5]
        large = [file for file in largest if file.size * SMALL >= largest[0].size]
        named = ", ".join(f"{shown(file.path)} ({file.size / 1e6:.1f} MB)" for file in large)
        return UsageError(f"{shown(self._root)}: the code to send exceeds {limit}; largest: {named}; {INSTEAD}")


def _hash(root: Path, file: _File) -> FileEntry:
    if file.target is not None:
        return FileEntry(file.path, False, 0, "", file.target, blob=commit.blob_id(os.fsencode(file.target)))
    path = root / file.path
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{shown(path)}: cannot be read: {exc.strerror}; make it readable, or {INSTEAD}") from exc
    data = data[: file.size]  # it may be a log that grows
    if len(data) != file.size:
        raise UsageError(f"{shown(path)}: changed while it was read; run the command again, or {INSTEAD}")
    names_torch = file.path.endswith(".py") and _TORCH.search(data) is not None
    sha256, blob = hashlib.sha256(data).hexdigest(), commit.blob_id(data)
    return FileEntry(file.path, file.executable, len(data), sha256, names_torch=names_torch, blob=blob)


def _manifest_entry(entry: FileEntry) -> Entry:
    path = os.fsencode(entry.path)
    if entry.target is not None:
        return Entry(path, LINK, os.fsencode(entry.target))
    return Entry(path, EXECUTABLE if entry.executable else FILE, entry.sha256.encode("ascii"))


def _on_wire(path: str) -> str:
    """A path for tarfile, which encodes it as UTF-8: the result has the bytes of the file system, in any locale."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _advise(script: Path, base: Path) -> str:
    name = script.name
    if name.startswith("-"):
        return "after `--`, the first word must be a script, -m with a module, or a flag such as --lr"
    if re.fullmatch(r"python[\d.]*|torchrun", name):
        return f"pass only the script; ddp-orch starts {name} itself"
    siblings = [path.stem for path in script.parent.glob("*.py") if path.is_file()] if script.parent.is_dir() else []
    if close := get_close_matches(script.stem, siblings, 1):
        sibling = script.with_name(f"{close[0]}.py")
        return f"did you mean {shown(os.path.relpath(sibling, base))}?"
    return f"its path is relative to {shown(base)}"
