"""What the node program says first, and what time it is on its host. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from .decode import NOT_NULL
from .operation import Operation


@dataclass(frozen=True)
class Hello:
    """What the node program says first."""

    codes: tuple[str, ...]
    """Hashes of the code snapshots that are there."""
    boot_id: str
    machine_id: str
    state_inode: tuple[int, ...]
    """Device and inode of the state folder."""
    state: str | None = field(default=None, metadata=NOT_NULL)
    """The state folder."""
    passed_over: tuple[str, ...] = ()
    """Why a folder that is preferred to it could not be used."""
    pid: int | None = None
    """Of the relay."""


@dataclass(frozen=True)
class Clock:
    """`clock`"""

    clock: float
    """Unix seconds."""


CLOCK = Operation("clock", Clock)
