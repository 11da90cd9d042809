"""The answers about files that a run wrote, and about what a host removed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .decode import decode
from .fields import RunName, UnixTime
from .operation import Nothing, Operation, Streaming


@dataclass(frozen=True)
class FileData:
    """The header of a DATA frame of `send`: its payload belongs to one of the requested files."""

    file: int
    """The index of the file in the request."""
    error: str | None = None
    """Why the file cannot be sent."""
    end: bool = False
    """The file is complete."""
    mtime: int | None = None
    """ns since 1970; only with `end`."""


@dataclass(frozen=True)
class Outputs:
    """The answer to `outputs`."""

    files: tuple[tuple[str, int, int], ...]
    """(path, bytes, modification time in ns since 1970). Paths are not checked: they may lead anywhere."""
    written: str | None = None
    """An id of the current state of the files next to the code. `fetched` sends it back once they are downloaded."""


@dataclass(frozen=True)
class Pruned:
    """The answer to `prune`."""

    runs: tuple[str, ...]
    """Ids of removed runs."""
    unused: int
    """Number of removed code snapshots and node programs."""
    freed: int
    """Bytes."""
    left: int
    """Number of finished runs that are kept."""
    outputs: tuple[RunName, ...]
    """Names of runs whose output folders were removed."""


@dataclass(frozen=True)
class OutputFolder:
    """The output folder of the runs of one name on a host."""

    name: RunName
    bytes: int
    age: UnixTime
    """Seconds since the last change of a file in it."""
    in_use: bool
    """Whether an unfinished run writes to it."""


@dataclass(frozen=True)
class OutputFolders:
    """The answer to `output_folders`."""

    folders: tuple[OutputFolder, ...]


@dataclass(frozen=True)
class RemovedOutputs:
    """The answer to `remove_outputs`."""

    removed: tuple[RunName, ...]
    freed: int
    """Bytes."""


def _decode_file_data(header: Mapping[str, Any], _: bytes) -> FileData:
    return decode(FileData, header, "send")


OUTPUTS = Operation("outputs", Outputs)
SEND = Streaming("send", Nothing, _decode_file_data)
FETCHED = Operation("fetched", Nothing)
PRUNE = Operation("prune", Pruned)
OUTPUT_FOLDERS = Operation("output_folders", OutputFolders)
REMOVE_OUTPUTS = Operation("remove_outputs", RemovedOutputs)
