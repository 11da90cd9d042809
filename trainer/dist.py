"""Join the other ranks and talk to them: process group, small messages, signals. Knows nothing of training.

Two groups connect the ranks. The default group (NCCL on GPUs) carries gradients. The control group (gloo, host memory)
carries everything else, such as losses and signals, so that these never wait for a GPU.

This file and train.py work without the other modules, if torchrun or a launcher with the same variables starts them.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import platform
import signal
import socket
import struct
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

if TYPE_CHECKING or (__package__ == "trainer" and Path(__file__).with_name("place.py").exists()):
    from trainer.config import ConfigError as ConfigError
    from trainer.config import refuse
    from trainer.place import Place
    from trainer.place import find as find
else:  # copied without the other modules

    class ConfigError(Exception):
        """What was asked for cannot be done here. Its text is one line, for people; the trainer then exits with 2."""

    @dataclass(frozen=True)
    class Place:
        rank: int
        local_rank: int
        world_size: int
        local_world_size: int
        launcher: str
        master_addr: str = ""

    SIZES = {
        "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    }  # fmt: skip

    def find(environ: Mapping[str, str]) -> Place:
        """From torchrun's variables; without them, a world of one. Each task of mpirun and srun would be one."""
        for size, rank in SIZES.items():
            if "RANK" not in environ and int(environ.get(size, "1")) > 1:
                reason = f"{size} is {environ[size]}: each task would train alone; start one torchrun per host instead"
                refuse(ConfigError(reason), speaks=environ.get(rank) == "0")
        names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
        place = (int(environ.get(name, default)) for name, default in names.items())
        return Place(*place, "torchrun" if "RANK" in environ else "none")

    def refuse(error: ConfigError, speaks: bool) -> NoReturn:
        if speaks:
            print(f"trainer: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


FIRST_STEP_TIMEOUT = timedelta(minutes=30)  # until then, a rank may be reading from a slow disk or compiling
STEP_TIMEOUT = timedelta(minutes=10)  # a peer silent for so long is gone

NOTHING, SAVE, STOP = 0, 1, 2  # what a signal asks for; the greatest of all ranks counts
VOTE_SECONDS, VOTE_STEPS = 0.1, 16  # at most so long, and so many steps, between two votes

SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface
DISCARD = 9  # any port: connecting a UDP socket sends nothing

BROADCAST_CHUNK = 64 << 20  # bytes of a snapshot at once while it is handed round

# Before torch 2.8, destroy_process_group holds Python's lock while it waits for gloo's threads, and a thread that is
# the last to hold a tensor needs that lock to let go of it: a deadlock (pytorch#154976). So the last are held here.
LAST_SENT: deque[Tensor] = deque(maxlen=8)


@dataclass(frozen=True)
class World:
    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    # gloo, in host memory: ranks exchange small messages without waiting for a GPU
    control: dist.ProcessGroup | None = None

    def print(self, line: str) -> None:
        """Print on rank 0 only."""
        if self.rank == 0:
            print_line(line)

    def seed(self, number: int) -> None:
        """Seed the CPU and this rank's device. (torch.manual_seed seeds all devices, which takes much longer.)"""
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def sum(self, *values: float) -> list[float]:
        """Each value added up over all ranks, in double precision: counts stay exact."""
        return self._added(torch.tensor(values, dtype=torch.float64)).tolist()

    def gather(self, value: int) -> list[int]:
        """The values of all ranks, by rank. No rank returns before all have called."""
        values = torch.zeros(self.world_size, dtype=torch.int64)
        values[self.rank] = value
        return self._added(values).tolist()

    def gather_all(self, *values: float) -> list[list[float]]:
        """The values of all ranks: for each rank its own."""
        table = torch.zeros(self.world_size, len(values), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        return self._added(table).tolist()

    def broadcast(self, content: bytes, source: int) -> bytearray:
        """`content` of rank `source`, on all ranks. (torch's own for objects needs numpy, and unpickles what comes.)"""
        size = self.gather(len(content))[source]
        received = bytearray(content if self.rank == source else size)
        shared = torch.frombuffer(received, dtype=torch.uint8)
        for start in range(0, size, BROADCAST_CHUNK):
            dist.broadcast(shared[start : start + BROADCAST_CHUNK], source, group=self.control)
        return received

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors of floating point with those of rank 0."""
        for flat in flatten(tensors):
            dist.broadcast(flat.values, 0)
            flat.copy_back(flat.values)

    def average_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors of floating point with their mean over all ranks."""
        for flat in flatten(tensors):
            dist.all_reduce(flat.values)
            flat.copy_back(flat.values / self.world_size)

    @contextlib.contextmanager
    def fail_together(self) -> Iterator[None]:
        """A ConfigError inside, on any rank, ends all of them: said once, by the first rank that has one."""
        problem = None
        try:
            yield
        except ConfigError as error:
            problem = error
        troubled = [rank for rank, has_one in enumerate(self.gather(problem is not None)) if has_one]
        if troubled:
            self.exit_together(2, f"{socket.gethostname()}: {problem}", speaker=troubled[0])

    def exit_together(self, code: int, reason: str, speaker: int) -> None:
        """For all ranks to call at once: exit with `code`, after one of them has said why."""
        if self.rank == speaker:
            print(f"trainer: {reason}", file=sys.stderr, flush=True)
        self.gather(0)  # torchrun ends all its workers as soon as one has exited, which must not be before it is said
        sys.exit(code)

    def expect_quick_steps(self) -> None:
        """The first step is behind all ranks: wait less long for a peer from here on."""
        set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout  # public since torch 2.14
        for group in {dist.group.WORLD, self.control}:
            set_timeout(STEP_TIMEOUT, group)

    def _added(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, group=self.control)
        LAST_SENT.append(tensor)
        return tensor


@contextlib.contextmanager
def joined(device: str, place: Place) -> Iterator[World]:
    """Meet the other ranks; alone, be a world of one. Leave them on the way out."""
    try:
        chosen = choose_device(device, place)
    except ConfigError as error:
        refuse(error, speaks=place.local_rank == 0)  # all ranks of a host have the same GPUs
    # Said before meeting the others: when they do not come, this tells who did.
    attempt = os.environ.get("DDP_ORCH_ATTEMPT") or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
    print_line(
        f"start rank:{place.rank} world_size:{place.world_size} local_rank:{place.local_rank} "
        f"host:{socket.gethostname()} pid:{os.getpid()} device:{chosen} torch:{torch.__version__} "
        f"python:{platform.python_version()} threads:{torch.get_num_threads()} launcher:{place.launcher} "
        f"attempt:{attempt}{gpu_facts(chosen)}"
    )
    if place.master_addr:
        os.environ.update(MASTER_ADDR=place.master_addr, MASTER_PORT=str(place.master_port))
    cuda = chosen.type == "cuda"
    if cuda:
        torch.cuda.set_device(chosen)
    dist.init_process_group(
        backend="nccl" if cuda else "gloo",
        timeout=FIRST_STEP_TIMEOUT,
        rank=place.rank,
        world_size=place.world_size,
        store=meet(place),
        device_id=chosen if cuda else None,  # connect now, on this GPU: a wrong network shows here, not in a step
    )
    control = dist.new_group(backend="gloo", timeout=FIRST_STEP_TIMEOUT) if cuda else dist.group.WORLD
    crashed = False
    try:
        yield World(place.rank, place.local_rank, place.world_size, chosen, control)
    except Exception:
        crashed = True
        raise
    finally:
        # After an error NCCL would first wait for the peers, who wait for us, and the error would show only after the
        # time-out. The end of the process frees what it holds.
        if not (crashed and cuda):
            dist.destroy_process_group()


def meet(place: Place) -> Any:
    """The store in which the ranks find each other: of MASTER_ADDR, or for one rank without a launcher of its own."""
    if place.launcher == "none":
        return dist.HashStore()  # type: ignore[attr-defined]  # it needs no port
    ranks = dist.rendezvous("env://", place.rank, place.world_size, timeout=FIRST_STEP_TIMEOUT)  # type: ignore[attr-defined]
    store = next(ranks)[0]
    if place.local_world_size < place.world_size:
        choose_for_gloo(store, place.rank, place.world_size)
    return dist.PrefixStore("default_pg", store)  # type: ignore[attr-defined]


class Store(Protocol):
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


def choose_for_gloo(store: Store, rank: int, world_size: int) -> None:
    """Set GLOO_SOCKET_IFNAME where the host's own name leads nowhere, and it is unset. All ranks must call.

    Gloo listens on the address of the host's name. On Debian and Ubuntu, /etc/hosts says that this is 127.0.1.1, which
    other hosts cannot reach. Then the interface toward another host is the right one.
    """
    address = address_toward(os.environ.get("MASTER_ADDR", ""))
    store.set(f"address/{rank}", address)
    if "GLOO_SOCKET_IFNAME" in os.environ or not is_loopback(address_of(socket.gethostname())):
        return
    for other in range(world_size):
        if not is_loopback(address):
            break
        # This is the host of MASTER_ADDR, whose name leads nowhere too: look toward the hosts that came to it.
        peer = store.get(f"address/{other}").decode()
        address = address if is_loopback(peer) else address_toward(peer)
    if name := interface_of(address):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def is_loopback(address: str) -> bool:
    return not address or ipaddress.ip_address(address).is_loopback


def address_of(host: str) -> str:
    """Empty if the name is unknown."""
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0][4][0]).partition("%")[0]
    return ""


def address_toward(host: str) -> str:
    """The address of this host that packets to `host` come from; empty if there is no way."""
    with contextlib.suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def interface_of(address: str) -> str | None:
    if is_loopback(address):
        return None
    if ":" in address:
        packed = ipaddress.ip_address(address).packed.hex()
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        return next((line.split()[-1] for line in lines if line.startswith(packed)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return None


def choose_device(wanted: str, place: Place) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus == 1 and place.launcher == "srun" and "SLURM_GPUS_PER_TASK" in os.environ:
        return torch.device("cuda", 0)  # srun --gpus-per-task=1: each rank sees only its own
    if place.local_world_size > gpus:
        raise ConfigError(
            f"{socket.gethostname()}: {place.local_world_size} ranks, but torch {torch.__version__} sees {gpus} GPUs; "
            "start at most one rank per GPU, or use --device cpu"
        )
    return torch.device("cuda", place.local_rank)


def set_precision(precision: str, device: torch.device) -> None:
    """Raises ConfigError when the GPU lacks it."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # try the algorithms of a convolution, and use the fastest
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        # torch.cuda.is_bf16_supported says yes to older GPUs too: they emulate it, at a fraction of the speed
        if precision == "bf16" and not torch.version.hip and torch.cuda.get_device_capability() < (8, 0):
            raise ConfigError(f"--precision bf16: {torch.cuda.get_device_name()} has no bf16; use fp16")


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()


def gpu_facts(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    name = torch.cuda.get_device_name(device).replace(" ", "_")
    nccl: Any = torch.cuda.nccl.version()
    return f" gpu:{name} cuda:{torch.version.cuda} nccl:{'.'.join(map(str, nccl))}"


def print_line(line: str) -> None:
    """In one write: with `print`, a line of another rank on the same pipe may come between the text and its newline."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Requests:
    """A signal to any rank counts for all ranks at the same step.

    A rank that stopped by itself would leave its peers waiting in a collective, so they vote at every step boundary.
    The vote travels while the next step is computed and is read at the boundary after it, when it has long arrived.
    Where steps take milliseconds, a vote is felt all the same: then they vote only at some of the boundaries.
    """

    def __init__(self, world: World) -> None:
        self._group = world.control
        self._stop_asked = self._save_asked = False
        self._boundaries = 0
        self._every = 1
        self._vote = torch.zeros(1, dtype=torch.int32)
        self._travelling: dist.Work | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def agreed(self) -> int:
        """For all ranks to call at every step boundary; returns the same on all of them."""
        self._boundaries += 1
        if self._boundaries % self._every:
            return NOTHING
        agreed = NOTHING
        if self._travelling is not None:
            self._travelling.wait()
            agreed = int(self._vote.item())
        asked = STOP if self._stop_asked else SAVE if self._save_asked else NOTHING
        if asked == SAVE:
            self._save_asked = False  # only here: a signal up to now is answered by this vote
        self._vote = torch.tensor([asked], dtype=torch.int32)
        self._travelling = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def set_pace(self, step_time: float) -> None:
        """Vote so rarely that it is not felt, and so often that nobody waits. `step_time`: seconds, the same on all."""
        self._every = max(1, min(VOTE_STEPS, int(VOTE_SECONDS / max(step_time, 0.001))))

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGTERM:
            self._stop_asked = True
        else:
            self._save_asked = True


def ignore_signals(worker: int) -> None:
    """In a worker of DataLoader: signals to the process group are for the rank, which ends its workers at the end."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)


class Flat:
    """Tensors of one type as one tensor: one message for all, instead of a round trip for each."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.values = torch.cat([tensor.detach().flatten() for tensor in tensors])

    @torch.no_grad()
    def copy_back(self, values: Tensor) -> None:
        for tensor, part in zip(self.tensors, values.split([each.numel() for each in self.tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def flatten(tensors: Iterable[Tensor]) -> list[Flat]:
    """Group by type. Integers are left out: batch norm's count of batches is the same on all ranks."""
    by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if tensor.is_floating_point():
            by_type[tensor.dtype].append(tensor)
    return [Flat(group) for group in by_type.values()]
