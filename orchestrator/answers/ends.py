"""The answers to `stop`, `force` and `stale`: ended processes, and what they held. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from .operation import Operation


@dataclass(frozen=True)
class Killed:
    """A process that was ended."""

    pid: int
    cmd: str
    """Its command line."""


@dataclass(frozen=True)
class Remaining:
    """A process that is still running although it should have ended."""

    pid: int | None
    owner: str
    """The user name; "" if no process has this pid."""
    cmd: str
    why: str
    """Why it is still running."""


@dataclass(frozen=True)
class Holder:
    """A process that ddp-orch did not start, and that holds a port or a GPU."""

    pid: int | None
    """None: hidden, because it belongs to another user."""
    owner: str
    cmd: str
    what: str
    """What it holds, such as `port 29400`."""


@dataclass(frozen=True)
class Container:
    """A container of a run that is gone."""

    engine: str
    id: str


@dataclass(frozen=True)
class Ending:
    """The answer to `stop` and `force`."""

    killed: tuple[Killed, ...]
    ports_freed: tuple[int, ...]
    gpus_freed: tuple[int | str, ...]
    """Indexes or UUIDs."""
    remaining: tuple[Remaining, ...]
    containers: tuple[Container, ...] = field(default=(), kw_only=True)
    """Containers of the runs, of which none is left."""
    autostart_removed: bool = field(default=False, kw_only=True)
    """Whether the host would have started a guard of the run at its next boot (run.autostart)."""


@dataclass(frozen=True)
class LeftoversEnding(Ending):
    """The answer to `stale`."""

    memory_freed: tuple[str, ...]
    """Names of removed segments of shared memory."""
    holders: tuple[Holder, ...]


STOP = Operation("stop", Ending)
FORCE = Operation("force", Ending)
STALE = Operation("stale", LeftoversEnding)
