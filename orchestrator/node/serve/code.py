"""`code`: send a code snapshot of this host, for a host that is added to a run. `unpack` takes the stream."""

import gzip
import io
import os
import re
import tarfile
from typing import Any, BinaryIO, Callable, Dict, Iterator, cast

from ..host import state
from . import wire

Emit = Callable[[Dict[str, Any], bytes], None]
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def send(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """`arguments`: sha256. The parts of a tar stream."""
    sha256 = arguments["sha256"]
    folder = os.path.join(state.folder("code"), sha256)
    if not _SHA256.match(sha256) or not os.path.isdir(folder):
        raise wire.Refused("remote-workdir-missing", "the code snapshot is not here")
    parts = cast(BinaryIO, _Parts(emit))
    with gzip.GzipFile(filename="", fileobj=parts, mode="wb", compresslevel=1) as zipped:
        _pack(folder, zipped)
    return {}


def _pack(folder: str, out: gzip.GzipFile) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for path in _paths(folder):
            _add(archive, folder, path)


def _paths(folder: str) -> Iterator[str]:
    """Files and links, but no folders, as `unpack` wants it."""
    for parent, folders, names in os.walk(folder):
        for name in sorted(names + folders):
            path = os.path.join(parent, name)
            if os.path.islink(path) or not os.path.isdir(path):
                yield path


def _add(archive: tarfile.TarFile, folder: str, path: str) -> None:
    info = tarfile.TarInfo(os.path.relpath(path, folder))
    if os.path.islink(path):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        archive.addfile(info)
        return
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        info.size, info.mode = status.st_size, status.st_mode & 0o700
        archive.addfile(info, file)


class _Parts(io.RawIOBase):
    """A file whose pieces are sent as they are written."""

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), wire.MAX_PAYLOAD):
            self._emit({}, bytes(view[start : start + wire.MAX_PAYLOAD]))
        return len(view)
