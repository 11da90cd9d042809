"""Take the files of a run from its hosts. What a host says is not trusted.

A path leads nowhere but below its folder, through no link; a file has not many more bytes than it was said to have when
the size was shown; and it gets its name when all of it is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ..answers.files import SEND, FileData, Outputs
from ..errors import FindingsError, UnreachableError
from ..hosts.session import Session
from ..output.console import size as console_size

GROWTH = 1024 * 1024
"""Bytes that the files of a host may have grown by since they were listed, beyond twice their size; more is for the
next time."""

LARGEST = 1 << 63
"""Bytes, and ns since 1970, that no file has."""

BATCH = 1000  # files asked for at once


@dataclass(frozen=True)
class Remote:
    """A file on a host, by a path that leads nowhere else."""

    path: str
    size: int  # bytes
    mtime: int  # ns


@dataclass(frozen=True)
class Source:
    """What is brought from a host to one folder here: `output` and `code`, or one of the two."""

    folder: Path
    parts: tuple[str, ...] = ("output", "code")


@dataclass(frozen=True)
class Listed:
    """What a host has of a run."""

    source: Source
    files: list[Remote]
    written: str | None
    """Stands for the state of the files beside the code."""

    def missing(self) -> Listed:
        return replace(self, files=[remote for remote in self.files if not is_here(self.source.folder, remote)])


def checked(listing: Outputs) -> list[Remote]:
    """The files of a listing. Raises UnreachableError where it is not what an honest host would say."""
    remotes = {}
    for path, size, mtime in listing.files:
        if not 0 <= size < LARGEST or not abs(mtime) < LARGEST:
            raise UnreachableError("its file listing is invalid")
        if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path or not _can_be_named(path):
            raise UnreachableError(
                f"it lists a file outside its output folder: {path!r}; nothing is fetched from this host"
            )
        remotes[path] = Remote(path, size, mtime)
    return list(remotes.values())


def _can_be_named(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def is_here(folder: Path, remote: Remote) -> bool:
    """Whether it was fetched before and has not changed since, by size and time."""
    try:
        here = (folder / remote.path).lstat()
    except OSError:
        return False
    return (here.st_size, here.st_mtime_ns) == (remote.size, remote.mtime)


def totals(listed: Mapping[str, list[Listed]]) -> tuple[int, int]:
    """How many files, and their bytes."""
    every = [each for of_host in listed.values() for each in of_host]
    return sum(len(each.files) for each in every), sum(map(size_of, every))


def size_of(listed: Listed) -> int:
    return sum(remote.size for remote in listed.files)


def refuse(folder: Path, listed: Mapping[str, list[Listed]]) -> dict[str, FindingsError]:
    """Hosts whose files cannot be taken: the largest shares, where the disk does not take all, and links."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    refused = {}
    sizes = {host: sum(map(size_of, of_host)) for host, of_host in listed.items()}
    for host, size in sorted(sizes.items(), key=lambda item: item[1]):
        links = [each.source.folder for each in listed[host] if each.source.folder.is_symlink()]
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


def bring(session: Session, key: Mapping[str, str], listed: Listed, show: Callable[[int], None]) -> list[str]:
    """Fetch files of one host; gives what went wrong with single ones. `show` gets the bytes that have come."""
    folder, files = listed.source.folder, listed.files
    problems: list[str] = []
    room = Room(files)
    for start in range(0, len(files), BATCH):
        batch = files[start : start + BATCH]
        receiver = Receiver(folder, batch, room)

        def take(data: FileData, payload: bytes, receiver: Receiver = receiver) -> None:
            receiver.take(data, payload)
            show(room.taken)

        arguments = {**key, "paths": [remote.path for remote in batch]}
        try:
            session.follow(SEND, arguments, take)
        finally:
            receiver.give_up()
        problems += receiver.problems
        problems += [f"{remote.path}: the host did not send it" for remote in batch[receiver.done :]]
    return problems


class Room:
    """The bytes that a host may send for these files, all together."""

    def __init__(self, files: Iterable[Remote]) -> None:
        self.taken = 0
        self._most = 2 * sum(remote.size for remote in files) + GROWTH

    def take(self, count: int) -> bool:
        """Whether there was room."""
        self.taken += count
        return self.taken <= self._most


class Receiver:
    """Takes the parts of files as they come, one file at a time. Never raises: what goes wrong is in `problems`."""

    def __init__(self, folder: Path, files: list[Remote], room: Room) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._files = files
        self._room = room
        self._next = 0
        self._out: BinaryIO | None = None
        self._left = 0
        self._broken = False

    def take(self, data: FileData, payload: bytes) -> None:
        if data.file != self._next or self._next >= len(self._files):
            return  # the rest of a file that was given up
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
        """Leave nothing of a file that is not whole."""
        if self._out is not None:
            self._out.close()
            self._out = None
        with contextlib.suppress(OSError):
            self._aside().unlink()

    @property
    def done(self) -> int:
        return self._next

    def _aside(self) -> Path:
        return self._folder / f".fetching-{os.getpid()}"

    def _add(self, remote: Remote, payload: bytes) -> None:
        if self._out is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._aside().unlink(missing_ok=True)
            handle = os.open(self._aside(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            self._out = os.fdopen(handle, "wb")
            self._left = 2 * remote.size + GROWTH
        self._left -= len(payload)
        if self._left < 0 or not self._room.take(len(payload)):
            raise ValueError("it has grown a lot since it was listed; fetch it again")
        self._out.write(payload)

    def _finish(self, remote: Remote, mtime: int) -> None:
        assert self._out is not None
        self._out.close()
        self._out = None
        os.utime(self._aside(), ns=(remote.mtime, mtime))
        target = self._folder / remote.path
        _make_folders(self._folder, remote.path)
        self._aside().replace(target)
        self._next += 1


def _make_folders(folder: Path, path: str) -> None:
    """The folders on the way to a file, none of them a link. Raises OSError."""
    for name in path.split("/")[:-1]:
        folder = folder / name
        if folder.is_symlink():
            raise OSError(None, f"{folder} is a link on this machine; ddp-orch does not write through links")
        folder.mkdir(exist_ok=True)
