"""An output folder: list it, read its files, put complete files into it, move files aside. Follows no link.

Our own names in it begin with `.ddp-orch`, and are not listed:

.ddp-orch.incoming/   files that are not complete yet. While it exists, the folder may be half a copy of another one
.ddp-orch.replaced/   files that were moved aside because the other hosts do not have them, until the next time
.ddp-orch.leads       rank 0 ran here, and no other host has what it saved since, if `run.resume` is set
.ddp-orch.kept/DATE/  what rank 0 had saved here when another host went on without these files. It stays
"""

import contextlib
import errno
import os
import shutil
import stat
from typing import Iterator, List, Optional, Tuple

from ..host.state import OUTPUT_LEADS
from ..host.state import OWN_OUTPUT as OWN
from .copies import FILE, FOLDER, LINK, Entry

INCOMING, REPLACED, KEPT = OWN + ".incoming", OWN + ".replaced", OWN + ".kept"
PIECE = 512 * 1024  # bytes of a file that travel at once
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def listing(root: str) -> List[Entry]:
    """Everything but our own files, sockets and the like, and links that lead out of the folder. Raises OSError."""
    return list(_below(root, "")) if os.path.isdir(root) else []


def _below(root: str, folder: str) -> Iterator[Entry]:
    with os.scandir(os.path.join(root, folder)) as found:
        for item in sorted(found, key=lambda each: each.name):
            if not folder and item.name.startswith(OWN):
                continue
            path = os.path.join(folder, item.name)
            status = item.stat(follow_symlinks=False)
            mode = stat.S_IMODE(status.st_mode) & 0o777
            if stat.S_ISDIR(status.st_mode):
                yield Entry(path, FOLDER, mode=mode)
                yield from _below(root, path)
            elif stat.S_ISREG(status.st_mode):
                yield Entry(path, FILE, status.st_size, status.st_mtime_ns, mode, status.st_blocks * 512)
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(os.path.join(root, path))
                if stays_inside(os.path.join(folder, target)) and not os.path.isabs(target):
                    yield Entry(path, LINK, mtime=status.st_mtime_ns, target=target)


def stays_inside(path: str) -> bool:
    """Whether a relative path leads out of the folder at no point on its way."""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return False
    return not os.path.isabs(path)


def is_safe(path: str) -> bool:
    """Whether a path that another host named may be used: below the folder, and none of ours."""
    parts = path.split("/")
    clean = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    return clean and not parts[0].startswith(OWN)


def free(root: str) -> int:
    """Bytes that the disk of the folder has for us."""
    while not os.path.isdir(root):
        root = os.path.dirname(root)
    filesystem = os.statvfs(root)
    return filesystem.f_bavail * filesystem.f_frsize


@contextlib.contextmanager
def _parent(root: str, path: str) -> Iterator[Tuple[int, str]]:
    """A descriptor of the folder that a path is in, and its name there. No part of the way may be a link."""
    if not is_safe(path):
        raise OSError(errno.EINVAL, "not a path in the output folder", path)
    *folders, name = path.split("/")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER_FLAGS, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def open_file(root: str, path: str) -> int:
    """Open a file to read it. Raises OSError."""
    with _parent(root, path) as (folder, name):
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)


def pieces(handle: int, size: int) -> Iterator[Tuple[int, bytes]]:
    """(offset, bytes) of the data in an open file, without its holes."""
    position = 0
    while position < size:
        try:
            position = os.lseek(handle, position, os.SEEK_DATA)
            end = min(size, os.lseek(handle, position, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            end = size  # a file system that does not tell
        while position < end:
            data = os.pread(handle, min(PIECE, end - position), position)
            if not data:
                return  # it has become shorter
            yield position, data
            position += len(data)


class Incoming:
    """Changes an output folder. What is unfinished is in a folder of ours, and a file gets its name when complete."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._aside = os.path.join(root, INCOMING)
        os.makedirs(root, 0o700, exist_ok=True)
        _remove(self._aside)
        os.mkdir(self._aside, 0o700)
        _sync(root)

    def move_aside(self, paths: List[str], into: str = REPLACED) -> None:
        """`into`: a path in the output folder. Folders are given after what is in them."""
        _remove(os.path.join(self._root, REPLACED))
        for path in paths:
            with _parent(self._root, path) as (folder, name):
                if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    with contextlib.suppress(OSError):  # something is in it that is not ours to move, such as a socket
                        os.rmdir(name, dir_fd=folder)
                    continue
                kept = os.path.join(self._root, into, path)
                os.makedirs(os.path.dirname(kept), 0o700, exist_ok=True)
                os.rename(name, kept, src_dir_fd=folder)

    def make_folder(self, entry: Entry) -> None:
        with _parent(self._root, entry.path) as (folder, name):
            os.mkdir(name, 0o700, dir_fd=folder)
            os.chmod(name, entry.mode | 0o700, dir_fd=folder)

    def make_link(self, entry: Entry) -> None:
        if os.path.isabs(entry.target) or not stays_inside(os.path.join(os.path.dirname(entry.path), entry.target)):
            raise OSError(errno.EINVAL, "a link that leads out of the output folder", entry.path)
        aside = os.path.join(self._aside, "link")
        os.symlink(entry.target, aside)
        os.utime(aside, ns=(entry.mtime, entry.mtime), follow_symlinks=False)
        with _parent(self._root, entry.path) as (folder, name):
            os.rename(aside, name, dst_dir_fd=folder)

    def begin_file(self, number: int) -> "IncomingFile":
        return IncomingFile(self._root, os.path.join(self._aside, str(number)))

    def finish(self) -> None:
        """The folder is complete now."""
        _remove(self._aside)
        _sync(self._root)


class IncomingFile:
    def __init__(self, root: str, aside: str) -> None:
        self._root = root
        self._path = aside
        self._handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, offset: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # where the disk is almost full, a part is written first
            written = os.pwrite(self._handle, rest, offset)
            rest, offset = rest[written:], offset + written

    def finish(self, entry: Entry) -> None:
        """All of it is there: give it its name."""
        os.ftruncate(self._handle, entry.size)
        os.fchmod(self._handle, entry.mode)
        os.utime(self._handle, ns=(entry.mtime, entry.mtime))
        os.fsync(self._handle)  # else, after a power loss, a file of this size and time may have other content
        self.close()
        with _parent(self._root, entry.path) as (folder, name):
            os.rename(self._path, name, dst_dir_fd=folder)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def is_incomplete(root: str) -> bool:
    return os.path.lexists(os.path.join(root, INCOMING))


def leads(root: str) -> Optional[float]:
    """Since when only this folder has what rank 0 saves (Unix time, s)."""
    try:
        return os.lstat(os.path.join(root, OUTPUT_LEADS)).st_mtime
    except OSError:
        return None


def mark_leads(root: str, leads: bool) -> None:
    """Note whether only this folder will have what rank 0 saves from now on."""
    path = os.path.join(root, OUTPUT_LEADS)
    if leads:
        os.makedirs(root, 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(path, follow_symlinks=False)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def leave_token(root: str, name: str) -> None:
    """A file by which other hosts recognise a folder on a shared disk."""
    os.makedirs(root, 0o700, exist_ok=True)
    os.close(os.open(_token(root, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def sees_token(root: str, name: str) -> bool:
    return os.path.lexists(_token(root, name))


def remove_token(root: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_token(root, name))


def _token(root: str, name: str) -> str:
    if not name.isalnum():
        raise OSError(errno.EINVAL, "not a token", name)
    return os.path.join(root, "%s.token-%s" % (OWN, name))


def _remove(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
