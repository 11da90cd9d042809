"""The facts that a probe measures on a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from .decode import NOT_NULL
from .fields import Address, CudaVersion, Port, is_interval
from .ledger import EndedRun
from .operation import Operation


@dataclass(frozen=True)
class Disk:
    path: str
    kind: str
    """Of the file system: ext4, nfs4."""
    shared: bool
    """Whether other hosts can mount it at the same time."""
    total: int
    free: int
    """Both in bytes."""
    free_files: int | None


@dataclass(frozen=True)
class Disks:
    """None where a disk did not answer."""

    state: Disk | None = field(default=None, metadata=NOT_NULL)
    home: Disk | None = field(default=None, metadata=NOT_NULL)
    tmp: Disk | None = field(default=None, metadata=NOT_NULL)
    shm: Disk | None = field(default=None, metadata=NOT_NULL)


@dataclass(frozen=True)
class Interface:
    """An address of a network interface; one with several addresses is there several times."""

    name: str
    address: Address
    speed: int
    """Mbit/s; -1 where the driver tells none."""
    bridge: bool
    loopback: bool
    up: bool
    mtu: int | None


@dataclass(frozen=True)
class RdmaPort:
    device: str
    port: str
    state: str
    layer: str
    driver: str


@dataclass(frozen=True)
class Listener:
    """Who listens on a port; None: a process of another user."""

    pid: int | None
    command: str | None


@dataclass(frozen=True)
class Orphan:
    """A process of a run that is over."""

    pid: int
    run_id: str
    command: str


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    used_mib: int | None
    uid: int | None
    command: str | None


@dataclass(frozen=True)
class Gpu:
    """As nvidia-smi describes it; None: it says nothing of that."""

    index: int
    uuid: str | None
    name: str | None
    memory_mib: int | None
    used_mib: int | None
    compute_mode: str | None
    persistence: str | None
    mig: str | None
    fabric: str | None
    uncorrected_ecc: int | None
    repair: str | None
    slowed: tuple[str, ...]
    pcie_lanes: int | None
    pcie_lanes_most: int | None
    application_clock_mhz: int | None
    application_clock_default_mhz: int | None
    power_limit_w: float | None
    power_default_w: float | None
    nvlinks: tuple[int, int] | None
    """Active ones, and all."""
    paths: Mapping[str, str] | None
    """{another GPU: what joins them}, such as {"GPU1": "NV18"}."""
    lost: bool
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class Nvidia:
    driver: str | None
    cuda: CudaVersion | None
    """The newest that the driver serves."""
    error: str | None
    xids: tuple[str, ...]
    """Lines of the kernel's log."""


@dataclass(frozen=True)
class Script:
    """What the host's python makes of the script."""

    path: str
    error: str | None
    """Why it does not compile."""
    absent: str | None
    """Why it could not be read."""
    missing: tuple[str, ...]
    """Modules that it imports and that are not installed."""


@dataclass(frozen=True)
class Python:
    executable: str
    python: tuple[int, ...]
    torch: str | None
    cuda: CudaVersion | None
    """That torch is built for."""
    packages: Mapping[str, str]
    limits: Mapping[str, int | None]
    """nofile, nproc, memlock; None: unlimited."""
    script: Script | None
    settings: Mapping[str, str]
    """Variables of the environment that NCCL and gloo read."""
    net_plugin: str | None
    libfabric: str | None
    path: str | None = None
    build_locks: str | None = None


@dataclass(frozen=True)
class NoPython:
    """Why the host's python could not be asked; `code` is a finding's."""

    error: str
    code: str


@dataclass(frozen=True)
class Lookup:
    """The answer to a look-up of a name or an address."""

    found: tuple[str, ...]
    error: str | None
    seconds: float | None
    """None: there was no answer."""


@dataclass(frozen=True)
class Facts:
    """`probe`"""

    hostname: str
    machine: str
    uid: int
    cores: int
    clock: float
    workdir: bool | None
    """Whether it is a folder; None: none was asked for."""
    cgroup_pids: int | None
    disks: Disks
    interfaces: tuple[Interface, ...]
    rdma: tuple[RdmaPort, ...]
    firewalls: tuple[str, ...]
    port_range: Annotated[tuple[Port, Port], is_interval]
    """Of the ports that the kernel gives to clients."""
    first_port: int
    """That is not for root alone."""
    listeners: Mapping[str, Listener]
    """By port."""
    orphans: tuple[Orphan, ...]
    stale_locks: tuple[str, ...]
    paths: Mapping[str, str | None]
    """Why a path cannot be read; None: it can."""
    hung: tuple[str, ...]
    """Paths whose file system does not answer."""
    dns: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    nvidia: Nvidia
    python: Python | NoPython
    names: Mapping[str, Lookup]
    notify: Mapping[str, str] = field(default_factory=dict)
    """Why a notification would fail, by `webhook` or `command`."""
    ledger: tuple[EndedRun, ...] = ()
    """Of the runs that ended last, the newest last."""


PROBE = Operation("probe", Facts)
