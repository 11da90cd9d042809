"""The first frame of the node program, and the answer to `clock`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from .decode import NOT_NULL
from .operation import Operation


@dataclass(frozen=True)
class Hello:
    """The first frame of the node program."""

    codes: tuple[str, ...]
    """Hashes of the code snapshots on the host."""
    boot_id: str
    """The boot id of the kernel. It changes when the host restarts."""
    machine_id: str
    """From /etc/machine-id."""
    state_inode: tuple[int, ...]
    """Device and inode of the state folder."""
    state: str | None = field(default=None, metadata=NOT_NULL)
    """Path of the state folder."""
    passed_over: tuple[str, ...] = ()
    """Why the preferred state folders could not be used."""
    pid: int | None = None
    """The pid of the relay, the process that serves this session."""


@dataclass(frozen=True)
class Clock:
    """The answer to `clock`."""

    clock: float
    """Unix time, seconds."""


CLOCK = Operation("clock", Clock)
