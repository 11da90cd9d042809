"""A snapshot of the user's code, named by the hash of its content. Reads files; sends nothing itself."""

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
from pathlib import Path
from typing import BinaryIO, Literal

from ..errors import UsageError
from ..node.serve.unpack import EXECUTABLE, FILE, LINK, MAX_BYTES, MAX_FILES, Entry, manifest_sha256, stays_inside
from . import git
from .code_files import INSTEAD, lies_in, list_all, list_code, list_excluded, never_sent, shown

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

AUTO = "auto"  # in run.sync, alone or as one of the paths
Sync = Literal["auto", "none"] | tuple[str, ...]


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
    excluded: tuple[str, ...] = ()  # by .gitignore, from `workdir` on, without hidden ones; folders with `/`
    credentials: tuple[str, ...] = ()  # left out, from `root` on

    def largest(self, count: int) -> tuple[tuple[str, int], ...]:
        """The files and folders in `root` with the most bytes: (name, bytes); folders with `/`."""
        sizes: dict[str, int] = {}
        for entry in self.files:
            name, slash, _ = entry.path.partition("/")
            sizes[name + slash] = sizes.get(name + slash, 0) + entry.size
        largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
        return tuple((shown(name), size) for name, size in largest)

    def write_tar(self, out: BinaryIO) -> None:
        """Write the gzipped tar that node/serve/unpack.py reads. It reads all files again: pack once for all hosts.

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
        changed = f"{shown(path)}: changed while the code was being sent; run the command again"
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise UsageError(changed) from exc
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UsageError(changed)
        archive.addfile(info, io.BytesIO(data))


def snapshot(script: Path, sync: Sync, base: Path, sync_base: Path | None = None) -> Snapshot | None:
    """What has to be sent for `script` to run elsewhere; None for `none`.

    `base` is the folder that `script` is relative to and the run starts in, `sync_base` (default: `base`) the one
    that paths in `sync` are relative to. `auto` takes what git tracks or would in the script's repository or, without
    one, in the script's folder. Paths are taken whole. The script is always taken; never .git, byte code, virtual
    environments, results of runs, sockets, devices. Credentials, and links out of what is taken, are left out unless a
    path in `sync` names them. Empty folders are not kept.
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
        raise UsageError(f"{shown(script)}: no such file; {_meant(script, base)}")
    warnings: list[str] = []
    chosen = (
        tuple(_absolute(Path(path).expanduser(), sync_base) for path in sync if path != AUTO) if sync != AUTO else ()
    )
    top = _top(script, base, sync_base) if AUTO in sync else None
    root = _root(script, base, chosen, top)
    files = _Collection(root, [Path(os.path.realpath(script)), *chosen, *([top] if top else [])], warnings)
    for path in (script, *chosen):
        named = _CREDENTIAL.search(os.path.relpath(path, sync_base)) is not None  # with all that is in it
        for inner in list_all(root, path):
            files.add(inner, "" if named else os.path.relpath(root / inner, path))
    if top:
        for inner in list_code(top, warnings):
            files.add(os.path.relpath(top / inner, root), inner)
    files.check_size()
    entries = tuple(_hashed(root, file) for file in sorted(files.files, key=lambda file: os.fsencode(file.path)))
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
    )


def why_not_sent(folder: Path, path: str, sync_base: Path) -> str | None:
    """Why a file that exists here is no part of the code, and what sends it; None if it is missing, or no rule says so.

    `folder`: where the run starts; `path` is relative to it, paths in run.sync to `sync_base`.
    """
    full = Path(os.path.normpath(folder / path))
    top = next((parent for parent in (folder, *folder.parents) if git.has_repository(parent)), folder)
    if not os.path.lexists(full) or not full.is_relative_to(top) or full == top:
        return None
    inner = os.path.relpath(full, top)
    if _CREDENTIAL.search(inner):
        why = "its name is one of a credential"
    elif rule := git.exclusion(top, inner):
        why = f"line {rule.line} of {shown(rule.file)} ({shown(rule.pattern)}) excludes it"
    else:
        return None
    named = shown(os.path.relpath(full, sync_base))
    return f"{shown(path)} exists on this machine but is not sent: {why}. Add it to run.sync: [auto, {named}]"


def _top(script: Path, base: Path, sync_base: Path) -> Path:
    """The folder whose files are the script's code: the top of its repository, else its own folder.

    Raises UsageError for a folder without a repository that holds much besides: nobody means to send a whole home.
    """
    for folder in script.parents:
        if git.has_repository(folder):
            return folder
    folder = script.parent
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


def _root(script: Path, base: Path, chosen: tuple[Path, ...], top: Path | None) -> Path:
    """The folder that all paths of the snapshot are relative to."""
    if not chosen and top:
        return top
    missing = next((path for path in chosen if not os.path.lexists(path)), None)
    if missing is not None:
        raise UsageError(f"{shown(missing)}: no such file or folder, but run.sync lists it")
    folders = [path if path.is_dir() else path.parent for path in (*chosen, script, *([top] if top else []))]
    # the folder of the call as well, if it is above the script: relative paths in the script's arguments mean that one
    return Path(os.path.commonpath([*folders, *([base] if script.is_relative_to(base) else [])]))


def _absolute(path: Path, base: Path) -> Path:
    """Without links on the way, but the last name as it is: a link is sent as what its place says."""
    path = base / path
    return path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    executable: bool
    target: str | None


class _Collection:
    """The files to be sent. Refuses one too many as soon as it comes."""

    def __init__(self, root: Path, sources: Sequence[Path], warnings: list[str]) -> None:
        self.files: list[_File] = []
        self.size = 0
        self.credentials: set[str] = set()
        self._root = root
        self._sources = sources  # the files and folders whose content may be sent
        self._warnings = warnings
        self._seen: set[str] = set()  # git lists a file in conflict once per side; paths in run.sync may overlap
        self._folders: dict[str, bool] = {}

    def add(self, path: str, own: str) -> None:
        """`own`: the part of `path` that nobody has named, and that must not be the name of a credential."""
        if path in self._seen or any(map(never_sent, path.split("/"))) or not self._is_here(path):
            return
        if _CREDENTIAL.search(own):
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
        """False behind a link: to git, which may list it still, such a file is as good as deleted."""
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._folders[folder] = lies_in(self._root, path)
        return self._folders[folder]

    def check_size(self) -> None:
        """Once all files are known, so that the largest can be named."""
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
            status = full.stat()  # the content of what it leads to goes in its place
        if not stat.S_ISREG(status.st_mode):
            self._warnings.append(f"{shown(full)} is not sent: neither a file nor a link")
            return None
        return _File(path, status.st_size, bool(status.st_mode & stat.S_IXUSR), None)

    def _may_be_copied(self, real: Path) -> bool:
        """Whether the file that a link leads to is sent in its place: only from where files are sent anyway."""
        return real.is_file() and any(
            real.is_relative_to(source) and not _CREDENTIAL.search(str(real.relative_to(source)))
            for source in self._sources
        )

    def _too_much(self, limit: str) -> UsageError:
        largest = sorted(self.files, key=lambda file: (-file.size, file.path))[:5]
        named = ", ".join(f"{shown(file.path)} ({file.size / 1e6:.1f} MB)" for file in largest)
        return UsageError(f"{shown(self._root)}: the code to send exceeds {limit}; largest: {named}; {INSTEAD}")


def _hashed(root: Path, file: _File) -> FileEntry:
    if file.target is not None:
        return FileEntry(file.path, False, 0, "", file.target)
    path = root / file.path
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{shown(path)}: cannot be read: {exc.strerror}; make it readable, or {INSTEAD}") from exc
    if len(data) != file.size:
        raise UsageError(f"{shown(path)}: changed while it was read; run the command again, or {INSTEAD}")
    return FileEntry(file.path, file.executable, len(data), hashlib.sha256(data).hexdigest())


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
        return "after `--`, the first word must be a script, -m with a module, or a flag such as --lr"
    if re.fullmatch(r"python[\d.]*|torchrun", name):
        return f"pass only the script; ddp-orch starts {name} itself"
    siblings = [path.stem for path in script.parent.glob("*.py") if path.is_file()] if script.parent.is_dir() else []
    if close := get_close_matches(script.stem, siblings, 1):
        meant = script.with_name(f"{close[0]}.py")
        return f"did you mean {shown(os.path.relpath(meant, base))}?"
    return f"its path is relative to {shown(base)}"
