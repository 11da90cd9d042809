"""What hosts say of the files that a run wrote, and of what they removed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import RunId, RunName, UnixTime


@dataclass(frozen=True)
class Nothing:
    """The answer to what gives none but its success."""


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
