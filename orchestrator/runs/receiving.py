"""Download the files of a run from its hosts, which are not trusted.

Files are written only below the target folder, and never through a link. A file may have grown only a little since the
user saw its size. It gets its name when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ..answers.files import SEND, FileData, Outputs
from ..errors import FindingsError, UnreachableError
from ..hosts.session import Session
from ..output.console import size as console_size

GROWTH = 1024 * 1024
"""Bytes that the files of a host may have more than twice their listed size; for more, the user fetches again."""

TOO_LARGE = 1 << 63
"""No file has so many bytes, or such a time in ns since 1970."""

BATCH = 1000  # files per request


@dataclass(frozen=True)
class RemoteFile:
    """A file on a host. Its path has been checked: it stays below the folder."""

    path: str
    size: int  # bytes
    mtime: int  # ns
    target: str = ""
    """Its path here, below the folder; "": as `path`."""

    @property
    def path_here(self) -> str:
        return self.target or self.path


@dataclass(frozen=True)
class Source:
    """What to download from a host into one folder here: `output`, `code` or both."""

    folder: Path
    parts: tuple[str, ...] = ("output", "code")


@dataclass(frozen=True)
class SourceListing:
    """The files of one source."""

    source: Source
    files: list[RemoteFile]
    written: str | None
    """An id of the current state of the files next to the code; see `fetched` in docs/protocol.md."""

    def missing(self) -> SourceListing:
        """The files to download: neither here already, nor older than those here."""
        here = self.source.folder
        files = [one for one in self.files if not (is_here(here, one) or is_newer_here(here, one))]
        return replace(self, files=files)

    def newer_here(self) -> list[Path]:
        """The files here that a download would replace by older ones."""
        here = self.source.folder
        return [here / remote.path_here for remote in self.files if is_newer_here(here, remote)]


def check_listing(listing: Outputs) -> list[RemoteFile]:
    """The files that a host lists. Raises UnreachableError if a path, size or time is invalid."""
    remotes = {}
    for path, size, mtime in listing.files:
        if not 0 <= size < TOO_LARGE or not abs(mtime) < TOO_LARGE:
            raise UnreachableError("the host sent an invalid file listing")
        if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path or not _can_be_named(path):
            raise UnreachableError(
                f"the host lists a file outside its output folder: {path!r}; nothing is fetched from this host"
            )
        remotes[path] = RemoteFile(path, size, mtime)
    return list(remotes.values())


def _can_be_named(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def is_here(folder: Path, remote: RemoteFile) -> bool:
    """Whether the file was downloaded before and has not changed, by its size and time."""
    status = _status_here(folder, remote)
    return status is not None and (status.st_size, status.st_mtime_ns) == (remote.size, remote.mtime)


def is_newer_here(folder: Path, remote: RemoteFile) -> bool:
    """Whether the file here was written later: somebody has edited it, or it is one of a newer run."""
    status = _status_here(folder, remote)
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_mtime_ns > remote.mtime


def _status_here(folder: Path, remote: RemoteFile) -> os.stat_result | None:
    try:
        return (folder / remote.path_here).lstat()
    except OSError:
        return None


def totals(listed: Mapping[str, list[SourceListing]]) -> tuple[int, int]:
    """The number of files, and their bytes."""
    listings = [listing for host_listings in listed.values() for listing in host_listings]
    return sum(len(listing.files) for listing in listings), sum(map(size_of, listings))


def size_of(listed: SourceListing) -> int:
    return sum(remote.size for remote in listed.files)


def refuse(folder: Path, listed: Mapping[str, list[SourceListing]]) -> dict[str, FindingsError]:
    """Hosts whose files are not downloaded: those with the most bytes, if the disk has no room for all, and those whose
    target folder is a link.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    refused = {}
    sizes = {host: sum(map(size_of, listings)) for host, listings in listed.items()}
    for host, size in sorted(sizes.items(), key=lambda item: item[1]):
        links = [listing.source.folder for listing in listed[host] if listing.source.folder.is_symlink()]
        if links:
            refused[host] = FindingsError(
                f"{host}: {links[0]} is a link on this machine; ddp-orch does not write through links"
            )
        elif size > free:
            room = f"{console_size(size)} to fetch, but only {console_size(free)} free in {place}"
            refused[host] = FindingsError(f"{host}: {room}; give -o DIR")
        else:
            free -= size
    return refused


def download_files(
    session: Session, key: Mapping[str, str], listed: SourceListing, show: Callable[[int], None]
) -> list[str]:
    """Download files of one host, and return the problems with single files. `show` gets the bytes received so far."""
    folder, files = listed.source.folder, listed.files
    problems: list[str] = []
    limit = SizeLimit(files)
    for start in range(0, len(files), BATCH):
        batch = files[start : start + BATCH]
        receiver = Receiver(folder, batch, limit)

        def take(data: FileData, payload: bytes, receiver: Receiver = receiver) -> None:
            receiver.take(data, payload)
            show(limit.received)

        arguments = {**key, "paths": [remote.path for remote in batch]}
        try:
            session.follow(SEND, arguments, take)
        finally:
            receiver.give_up()
        problems += receiver.problems
        problems += [f"{remote.path}: the host did not send it" for remote in batch[receiver.done :]]
    return problems


class SizeLimit:
    """The limit for the bytes of all files of a host together."""

    def __init__(self, files: Iterable[RemoteFile]) -> None:
        self.received = 0
        self._limit = 2 * sum(remote.size for remote in files) + GROWTH

    def add(self, count: int) -> bool:
        """Count bytes; False if they exceed the limit."""
        self.received += count
        return self.received <= self._limit


class Receiver:
    """Writes files from the parts that a host sends, one file at a time. Never raises: errors go to `problems`."""

    def __init__(self, folder: Path, files: list[RemoteFile], limit: SizeLimit) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._files = files
        self._limit = limit
        self._next = 0
        self._out: BinaryIO | None = None
        self._left = 0
        self._broken = False

    def take(self, data: FileData, payload: bytes) -> None:
        if data.file != self._next or self._next >= len(self._files):
            return  # the rest of a file that failed
        remote = self._files[self._next]
        try:
            if data.error is not None:
                raise OSError(None, data.error[:200])
            self._add(remote, payload)
            if data.end:
                self._finish(remote, remote.mtime if data.mtime is None else data.mtime)
        except (OSError, ValueError, OverflowError) as error:
            self.problems.append(f"{remote.path}: {getattr(error, 'strerror', None) or error}")
            self.give_up()
            self._next += 1

    def give_up(self) -> None:
        """Remove the incomplete file."""
        if self._out is not None:
            self._out.close()
            self._out = None
        with contextlib.suppress(OSError):
            self._temporary().unlink()

    @property
    def done(self) -> int:
        return self._next

    def _temporary(self) -> Path:
        return self._folder / f".fetching-{os.getpid()}"

    def _add(self, remote: RemoteFile, payload: bytes) -> None:
        if self._out is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._temporary().unlink(missing_ok=True)
            handle = os.open(self._temporary(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            self._out = os.fdopen(handle, "wb")
            self._left = 2 * remote.size + GROWTH
        self._left -= len(payload)
        if self._left < 0 or not self._limit.add(len(payload)):
            raise ValueError("the file has grown a lot since it was listed; run fetch again")
        self._out.write(payload)

    def _finish(self, remote: RemoteFile, mtime: int) -> None:
        assert self._out is not None
        self._out.close()
        self._out = None
        os.utime(self._temporary(), ns=(remote.mtime, mtime))
        target = self._folder / remote.path_here
        _make_folders(self._folder, remote.path_here)
        self._temporary().replace(target)
        self._next += 1


def _make_folders(folder: Path, path: str) -> None:
    """Create the parent folders of a file. Raises OSError if one of them is a link."""
    for name in path.split("/")[:-1]:
        folder = folder / name
        if folder.is_symlink():
            raise OSError(None, f"{folder} is a link on this machine; ddp-orch does not write through links")
        folder.mkdir(exist_ok=True)
