"""What a host says of the processes that it ended, and of what they held. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .operation import Operation


@dataclass(frozen=True)
class Killed:
    """A process that is no more."""

    pid: int
    cmd: str


@dataclass(frozen=True)
class Remaining:
    """A process that was to be ended and is still there."""

    pid: int | None
    owner: str
    """Empty where no process has this pid."""
    cmd: str
    why: str


@dataclass(frozen=True)
class Holder:
    """A stranger's process that holds a port or a GPU; None: its pid is not to be seen."""

    pid: int | None
    owner: str
    cmd: str
    what: str


@dataclass(frozen=True)
class Ending:
    """`stop` and `force`"""

    killed: tuple[Killed, ...]
    ports_freed: tuple[int, ...]
    gpus_freed: tuple[int | str, ...]
    remaining: tuple[Remaining, ...]


@dataclass(frozen=True)
class LeftoversEnding(Ending):
    """`stale`"""

    memory_freed: tuple[str, ...]
    """Segments of shared memory."""
    holders: tuple[Holder, ...]


STOP = Operation("stop", Ending)
FORCE = Operation("force", Ending)
STALE = Operation("stale", LeftoversEnding)
