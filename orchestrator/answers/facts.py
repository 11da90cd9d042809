"""The answer to `probe`: the facts of a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from .decode import NOT_NULL
from .fields import Address, CudaVersion, HostName, Port, RunId, UnixTime, is_interval
from .finished import Finished
from .ledger import EndedRun
from .operation import Operation


@dataclass(frozen=True)
class Disk:
    """The file system of a path."""

    path: str
    kind: str
    """The kind of the file system: ext4, nfs4."""
    shared: bool
    """Whether other hosts can mount it at the same time."""
    total: int
    """Bytes."""
    free: int
    """Bytes that a user may write."""
    free_files: int | None
    """Inodes that a user may use; None: no limit."""


@dataclass(frozen=True)
class Disks:
    """The file systems of some folders; None: no answer in time."""

    state: Disk | None = field(default=None, metadata=NOT_NULL)
    home: Disk | None = field(default=None, metadata=NOT_NULL)
    tmp: Disk | None = field(default=None, metadata=NOT_NULL)
    shm: Disk | None = field(default=None, metadata=NOT_NULL)


@dataclass(frozen=True)
class Interface:
    """A network interface with one of its addresses; an interface with several addresses is listed several times."""

    name: str
    address: Address
    speed: int
    """Mbit/s; -1: unknown."""
    bridge: bool
    """Whether it is a bridge, such as docker0."""
    loopback: bool
    up: bool
    mtu: int | None
    """Bytes."""


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device, as in /sys/class/infiniband."""

    device: str
    """Such as `mlx5_0`."""
    port: str
    """Its number."""
    state: str
    """Such as `ACTIVE`."""
    layer: str
    """`InfiniBand` or `Ethernet`."""
    driver: str
    """Such as `efa`."""


@dataclass(frozen=True)
class Listener:
    """The process that listens on a port; None: it belongs to another user."""

    pid: int | None
    command: str | None


@dataclass(frozen=True)
class Orphan:
    """A process of a run that has no guard on this host."""

    pid: int
    run_id: str
    command: str


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU; None: unknown."""

    pid: int
    used_mib: int | None
    """MiB of GPU memory."""
    uid: int | None
    command: str | None


@dataclass(frozen=True)
class Gpu:
    """A GPU, as nvidia-smi describes it; None: it does not report that."""

    index: int
    name: str | None
    memory_mib: int | None
    used_mib: int | None
    compute_mode: str | None
    """Such as `Default` or `Exclusive_Process`."""
    persistence: str | None
    """`Enabled` or `Disabled`, as `mig`."""
    mig: str | None
    fabric: str | None
    """State of the NVSwitch fabric; `Completed`: the GPU is part of it."""
    uncorrected_ecc: int | None
    """Number of uncorrectable memory errors."""
    repair: str | None
    """Why its memory needs a repair; None: it does not."""
    slowed: tuple[str, ...]
    """Reasons for which the hardware has lowered its clock."""
    pcie_lanes: int | None
    """In use now; `pcie_lanes_most`: possible."""
    pcie_lanes_most: int | None
    application_clock_mhz: int | None
    application_clock_default_mhz: int | None
    power_limit_w: float | None
    power_default_w: float | None
    nvlinks: tuple[int, int] | None
    """Number of active links, and of all."""
    paths: Mapping[str, str] | None
    """{another GPU: the connection to it}, such as {"GPU1": "NV18"}."""
    lost: bool
    """It has fallen off the bus."""
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class Nvidia:
    """The NVIDIA driver of a host."""

    driver: str | None
    """Its version."""
    cuda: CudaVersion | None
    """The newest CUDA version that it supports."""
    error: str | None
    """Why nvidia-smi failed."""
    xids: tuple[str, ...]
    """Kernel messages about GPU errors (Xid)."""


@dataclass(frozen=True)
class Script:
    """The script, as the host's python sees it."""

    path: str
    error: str | None
    """Why it does not compile."""
    absent: str | None
    """Why it could not be read."""
    missing: tuple[str, ...]
    """Modules that it imports, but that are not installed."""


@dataclass(frozen=True)
class Python:
    """The python of a host, after its setup."""

    executable: str
    """Its path."""
    python: tuple[int, ...]
    """Its version."""
    torch: str | None
    """Version of torch; None: not installed."""
    cuda: CudaVersion | None
    """The CUDA version that torch was built for."""
    packages: Mapping[str, str]
    """Versions of other packages that matter, such as NCCL."""
    limits: Mapping[str, int | None]
    """Soft limits: nofile and nproc (numbers), memlock (bytes); None: unlimited. Hard ones: nofile_hard and so on."""
    script: Script | None
    settings: Mapping[str, str]
    """Environment variables that torch, NCCL and gloo read."""
    net_plugin: str | None
    """Path of the network plug-in that NCCL would load."""
    libfabric: str | None
    """Path of the libfabric that the plug-in would load."""
    path: str | None = None
    """Folder of torch."""
    build_locks: str | None = None
    """How builds of torch extensions lock each other out: `file` or `kernel`; None: unknown."""


@dataclass(frozen=True)
class NoPython:
    """The python of a host did not answer."""

    error: str
    """Why."""
    code: str
    """The code of the finding about that."""


@dataclass(frozen=True)
class ContainerFacts:
    """Whether containers can be started from the image of the inventory."""

    engine: str | None
    """Which one would be used; None: none can."""
    image: tuple[str, ...]
    """Its id, and its digests in registries; empty: the host does not have it."""
    gpus: bool
    """Whether the engine can give GPUs to a container."""
    cdi: bool = False
    """It gives them as devices of the Container Device Interface."""
    needs_linger: bool = False
    """The end of the last login would remove the engine's files."""
    code: str | None = None
    """The code of the finding about what is missing."""
    error: str | None = None


@dataclass(frozen=True)
class Lookup:
    """The answer to a look-up of a name or an address."""

    found: tuple[str, ...]
    """Addresses of a name, or names of an address."""
    error: str | None
    seconds: float | None
    """Until the answer; None: there was none in time."""


@dataclass(frozen=True)
class Login:
    """What becomes of a process when its login ends."""

    kills: bool
    """systemd-logind kills it."""
    linger: bool
    """The user's own systemd runs without a login."""
    scope: bool
    """It can be moved out of the login, to the user's own systemd."""
    slurm_adopts: bool
    """It belongs to a job of Slurm."""


@dataclass(frozen=True)
class LedLast:
    """Where rank 0 of the newest run of a name ran last, as this host knows."""

    run_id: RunId
    host: HostName
    """In the inventory that this run was started with."""
    here: bool
    """Whether it is this host."""
    newest: UnixTime | None
    """When a file in the output folder of the name was last written on this host; None: it has no file."""


@dataclass(frozen=True)
class Facts:
    """The answer to `probe`."""

    hostname: str
    machine: str
    """The architecture, such as `x86_64`."""
    uid: int
    cores: int
    """That the user may use."""
    clock: float
    """Unix time, seconds."""
    workdir: bool | None
    """Whether the requested workdir is a folder; None: none was requested."""
    cgroup_pids: int | None
    """Limit of processes and threads in the control group; None: no limit."""
    disks: Disks
    interfaces: tuple[Interface, ...]
    rdma: tuple[RdmaPort, ...]
    firewalls: tuple[str, ...]
    """`ufw`, `firewalld`, `iptables`, or `nft FAMILY TABLE CHAIN` for each chain that filters input.

    `nft-file FAMILY TABLE CHAIN`: it is in /etc/nftables.conf, and may be missing in the kernel.
    """
    port_range: Annotated[tuple[Port, Port], is_interval]
    """The first and last port that the kernel gives to clients."""
    first_port: int
    """The first port that is not reserved for root."""
    listeners: Mapping[str, Listener]
    """By port, for the requested ports that are in use."""
    orphans: tuple[Orphan, ...]
    stale_locks: tuple[str, ...]
    """Lock files that interrupted builds of torch extensions have left."""
    paths: Mapping[str, str | None]
    """By requested path: why it cannot be read; None: it can."""
    hung: tuple[str, ...]
    """Paths whose file system does not answer."""
    dns: tuple[str, ...]
    """Addresses of the name servers."""
    gpus: tuple[Gpu, ...]
    nvidia: Nvidia
    python: Python | NoPython
    names: Mapping[str, Lookup]
    """Look-ups of the host's own name, and of the requested names and addresses."""
    notify: Mapping[str, str] = field(default_factory=dict)
    """Why notifications would fail, by `webhook`, `mail` or `command`; only those that would."""
    autostart: str | None = None
    """Why the crontab or the systemd of the user cannot be used; None: it can, or was not asked for."""
    cron_runs: bool | None = None
    """Whether a cron daemon runs there; None: it is not known, or was not asked for."""
    login: Login | None = None
    """None: the host did not say."""
    lazy_init: str | None = None
    """The name of process 1, if it does not reap orphans."""
    container: ContainerFacts | None = None
    """None: the host needs none."""
    ledger: tuple[EndedRun, ...] = ()
    """The runs that ended last, the newest last."""
    finished: Finished | None = None
    """The runs to delete; None: the host was not asked for them."""
    led_last: LedLast | None = None
    """None: the host knows of no earlier run of the name that it was asked for, or was asked for none."""

    @property
    def versions(self) -> dict[str, str]:
        """What matters for the results of a run. A version that is not known is left out."""
        python = self.python if isinstance(self.python, Python) else None
        versions = {
            "python": ".".join(map(str, python.python)) if python else None,
            "torch": python.torch if python else None,
            "CUDA": python.cuda if python else None,
            "driver": self.nvidia.driver,
            "GPU": ", ".join(sorted({gpu.name for gpu in self.gpus if gpu.name})),
            **(python.packages if python else {}),
        }
        return {name: version for name, version in versions.items() if version}


PROBE = Operation("probe", Facts)
