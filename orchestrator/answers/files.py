"""What hosts say of the files that a run wrote, and of what they removed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .decode import decode
from .fields import RunId, RunName, UnixTime
from .operation import Nothing, Operation, Streaming


@dataclass(frozen=True)
class FileData:
    """The header of DATA of `send`: the payload belongs to the file with this number."""

    file: int
    error: str | None = None
    """Why it cannot be sent."""
    end: bool = False
    """It is whole now."""
    mtime: int | None = None
    """ns since 1970, where it is whole."""


@dataclass(frozen=True)
class Outputs:
    """`outputs`"""

    files: tuple[tuple[str, int, int], ...]
    """Path, bytes, ns since 1970. Where a path leads is for whoever writes to it to check."""
    written: str | None = None
    """Stands for the state of the files beside the code."""


@dataclass(frozen=True, kw_only=True)
class Unfetched:
    """Runs that a host keeps only as what they wrote beside their code was not fetched."""

    unfetched: tuple[RunId, ...]
    unfetched_bytes: int


@dataclass(frozen=True, kw_only=True)
class Pruned(Unfetched):
    """`prune`"""

    runs: tuple[str, ...]
    unused: int
    """Pieces of code."""
    freed: int
    """Bytes."""
    left: int
    """Runs that are over and kept."""
    outputs: tuple[RunName, ...]


@dataclass(frozen=True)
class OutputFolder:
    """Where the runs of one name write on a host."""

    name: RunName
    bytes: int
    age: UnixTime
    """Seconds since something in it was written."""
    in_use: bool


@dataclass(frozen=True)
class OutputFolders:
    """`output_folders`"""

    folders: tuple[OutputFolder, ...]


@dataclass(frozen=True)
class RemovedOutputs:
    """`remove_outputs`"""

    removed: tuple[RunName, ...]
    freed: int


def _decode_file_data(header: Mapping[str, Any], _: bytes) -> FileData:
    return decode(FileData, header, "send")


OUTPUTS = Operation("outputs", Outputs)
SEND = Streaming("send", Nothing, _decode_file_data)
FETCHED = Operation("fetched", Nothing)
PRUNE = Operation("prune", Pruned)
OUTPUT_FOLDERS = Operation("output_folders", OutputFolders)
REMOVE_OUTPUTS = Operation("remove_outputs", RemovedOutputs)
