"""Unpack a code snapshot from a tar stream: completely and exactly, or not at all.

The folder a snapshot ends in is named by the hash of its manifest, so a folder that is there is complete. Nothing in
the archive is trusted: it writes nowhere else, and only files, folders and links that stay inside come of it.
"""

import hashlib
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Iterable, List, NamedTuple

from ..host.state import FULL

MAX_BYTES = 200 * 1000 * 1000
MAX_FILES = 20_000
MAX_NAME = 64 * 1024  # bytes; Linux takes paths of 4096
LEFTOVER_AGE = 3600.0  # seconds; no transfer takes that long between two files
SYNC_THREADS = 16

FILE, EXECUTABLE, LINK = b"file", b"executable", b"link"

_CHUNK = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class UnpackError(Exception):
    """The stream is not the snapshot it should be; the text says why. Nothing is left of it."""


class Entry(NamedTuple):
    """One line of the manifest."""

    path: bytes  # relative, with `/`
    kind: bytes
    value: bytes  # a file's SHA-256 in hex, or a link's target


def manifest_sha256(entries: Iterable[Entry]) -> str:
    """The hash of a snapshot: of paths, executable bits and contents; not of times, owners or the entries' order."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        digest.update(b"\0".join((*entry, b"")))
    return digest.hexdigest()


def stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a symbolic link at `path` with this target cannot lead out of the snapshot.

    `..` only at the beginning of the target: behind a name that is a link itself it would go up from somewhere else.
    """
    parts = target.split(b"/")
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    return bool(target) and not target.startswith(b"/") and b".." not in parts[ups:] and ups <= path.count(b"/")


def unpack(stream: BinaryIO, sha256: str, parent: str) -> str:
    """Read a tar stream (gzipped or not) into `parent`/`sha256` and return that path; if it is there, nothing is read.

    May leave the end of the stream unread. Raises UnpackError.
    """
    if not _SHA256.match(sha256):
        raise UnpackError("not a SHA-256: %r" % sha256)
    target = os.path.join(parent, sha256)
    try:
        if not _is_there(target):
            _remove_leftovers(parent)
            _unpack(stream, sha256, parent, target)
    except OSError as error:
        full = "; free some space there" if error.errno in FULL else ""
        raise UnpackError("the code cannot be written to %s: %s%s" % (parent, error.strerror or error, full)) from error
    return target


def _is_there(target: str) -> bool:
    return os.path.isdir(target) and bool(os.listdir(target))  # an empty folder is no snapshot


def _unpack(stream: BinaryIO, sha256: str, parent: str, target: str) -> None:
    # a name nobody can foresee, mode 0700; not the pid alone, which two hosts with one home may share
    aside = tempfile.mkdtemp(prefix="%s.tmp-%d-" % (sha256, os.getpid()), dir=parent)
    try:
        entries = _extract(stream, os.fsencode(aside))
        if manifest_sha256(entries) != sha256:
            raise UnpackError("the code arrived incomplete or changed; send it again")
        _sync(aside)
        try:
            os.rename(aside, target)
        except OSError:
            if not _is_there(target):
                raise
            shutil.rmtree(aside)  # another transfer of the same snapshot was faster
        _sync_path(parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _extract(stream: BinaryIO, root: bytes) -> List[Entry]:
    entries: List[Entry] = []
    links: List[Entry] = []
    size = 0
    try:
        with tarfile.open(
            fileobj=stream, mode="r|*", tarinfo=_Member, encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for member in archive:
                path = _checked_path(member)
                size += member.size
                if member.size < 0 or size > MAX_BYTES or len(entries) + len(links) >= MAX_FILES:
                    raise UnpackError("more than %d bytes or %d files" % (MAX_BYTES, MAX_FILES))
                if member.issym():
                    links.append(Entry(path, LINK, _encoded(member.linkname)))
                else:
                    entries.append(_write_file(archive, member, path, root))
        _make_links(links, root)
    # beside its own, tarfile raises these for hostile headers; all of them mean the same
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise UnpackError("the stream is cut or not an archive: %s" % error) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UnpackError("two entries want one path: %s" % error) from error
    return entries + links


class _Member(tarfile.TarInfo):
    """A header, refused as soon as it is read: tarfile would keep what follows some of them in memory, however long."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):  # type: ignore[no-untyped-def]  # its types are private to typeshed
        member = super().frombuf(buf, encoding, errors)
        if member.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            if not 0 <= member.size <= MAX_NAME:
                raise UnpackError("a name of more than %d bytes" % MAX_NAME)
        elif member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.SYMTYPE):
            raise UnpackError("neither a file nor a symbolic link: %r" % member.name)
        return member


def _checked_path(member: tarfile.TarInfo) -> bytes:
    path = _encoded(member.name)
    if any(part in (b"", b".", b"..") for part in path.split(b"/")) or b"\0" in path:
        raise UnpackError("not a path inside of the snapshot: %r" % path)
    if member.mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
        raise UnpackError("setuid, setgid or sticky: %r" % path)
    return path


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # the bytes in the archive, whatever this host's locale is


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: bytes, root: bytes) -> Entry:
    source = archive.extractfile(member)
    assert source is not None  # it is a regular file
    target = os.path.join(root, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    executable = bool(member.mode & stat.S_IXUSR)
    digest = hashlib.sha256()
    # exclusively: an entry that comes twice must not write through what the first one made
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700 if executable else 0o600)
    with os.fdopen(handle, "wb") as file:
        for chunk in iter(lambda: source.read(_CHUNK), b""):
            digest.update(chunk)
            file.write(chunk)
    os.utime(root)  # still at work: not a leftover
    return Entry(path, EXECUTABLE if executable else FILE, digest.hexdigest().encode("ascii"))


def _make_links(links: List[Entry], root: bytes) -> None:
    """After all files, and after all their folders: so nothing is ever written through a link."""
    for link in links:
        if not stays_inside(link.path, link.value):
            raise UnpackError("a link that leads out: %r -> %r" % (link.path, link.value))
        os.makedirs(os.path.dirname(os.path.join(root, link.path)), exist_ok=True)
    for link in links:
        os.symlink(link.value, os.path.join(root, link.path))


def _sync(root: str) -> None:
    """All of it on the disk before it gets its name: after a power loss the name would promise what is not there."""
    paths: List[str] = []
    for folder, _, names in os.walk(root):
        paths.append(folder)
        paths += [path for path in (os.path.join(folder, name) for name in names) if not os.path.islink(path)]
    # together: a disk ends many of them with one commit of its journal (2,000 files: 0.3 s, one by one 6 s)
    with ThreadPoolExecutor(SYNC_THREADS) as threads:
        list(threads.map(_sync_path, paths))


def _sync_path(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_leftovers(parent: str) -> None:
    for name in os.listdir(parent):
        sha256, dot, _ = name.partition(".tmp-")
        if not dot or not _SHA256.match(sha256):
            continue
        path = os.path.join(parent, name)
        try:
            if time.time() - os.lstat(path).st_mtime > LEFTOVER_AGE:
                shutil.rmtree(path)
        except FileNotFoundError:
            pass  # it was not left over after all, or somebody else has removed it
