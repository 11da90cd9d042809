"""The answer to `gpus`: the GPUs of a host and who uses them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import RunId
from .operation import Operation


@dataclass(frozen=True)
class GpuUser:
    """A process that uses a GPU; None: unknown."""

    pid: int
    used_mib: int | None
    """MiB of GPU memory."""
    user: str | None
    """The name of its user, or the number."""
    command: str
    run_id: RunId | None
    """The run of ddp-orch that it belongs to."""


@dataclass(frozen=True)
class UsedGpu:
    """A GPU, as nvidia-smi describes it; None: it does not report that."""

    index: int
    name: str | None
    memory_mib: int | None
    used_mib: int | None
    busy: int | None
    """Percent of the time in which it computed something."""
    celsius: int | None
    lost: bool
    """It has fallen off the bus."""
    users: tuple[GpuUser, ...]


@dataclass(frozen=True)
class GpuList:
    gpus: tuple[UsedGpu, ...]
    driver: str | None
    """Its version; None: there is none."""
    problem: str | None
    """Why nvidia-smi lists no GPU; None also without nvidia-smi."""


GPUS = Operation("gpus", GpuList)
