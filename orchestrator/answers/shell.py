"""What a host says of a command that a user runs next to a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .decode import decode
from .operation import Streaming


@dataclass(frozen=True)
class ShellStarted:
    """The header of the first DATA frame."""

    missing_secrets: tuple[str, ...]
    """Names of the run's secrets that the host does not have (any more)."""


@dataclass(frozen=True)
class ShellOutput:
    """The header of output."""

    stream: Literal["stdout", "stderr"]


@dataclass(frozen=True)
class ShellTaken:
    """The header that makes room for more input."""

    taken: int
    """Bytes."""


@dataclass(frozen=True)
class ShellLive:
    """The header that shows that the command is still running."""

    live: bool


@dataclass(frozen=True)
class ShellEnd:
    """The answer to `shell`."""

    exit_code: int
    """128 + N if signal N has ended it."""


ShellData = ShellStarted | ShellOutput | ShellTaken | ShellLive
_KINDS: Mapping[str, type[ShellData]] = {
    "missing_secrets": ShellStarted,
    "stream": ShellOutput,
    "taken": ShellTaken,
}


def _decode_data(header: Mapping[str, Any], payload: bytes) -> ShellData:
    kind = next((kind for name, kind in _KINDS.items() if name in header), ShellLive)
    return decode(kind, header, "shell")


SHELL = Streaming("shell", ShellEnd, _decode_data)
