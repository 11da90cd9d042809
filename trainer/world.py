"""The ranks: who this process is, how it joins the others, what they tell each other. Knows nothing of training."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from trainer.config import ConfigError, refuse

# Until its first step a rank may be reading from a slow disk or compiling. Later, a peer silent for so long is gone.
FIRST_STEP_TIMEOUT = timedelta(minutes=30)
STEP_TIMEOUT = timedelta(minutes=10)

BROADCAST_CHUNK = 64 << 20  # bytes of a snapshot on the device at once while it is handed round

# Before torch 2.8, destroy_process_group holds Python's lock while it waits for gloo's threads, and a thread that is
# the last to hold a tensor needs that lock to let go of it: a deadlock (pytorch#154976). So the last are held here.
LAST_SENT: deque[Tensor] = deque(maxlen=8)


@dataclass(frozen=True)
class World:
    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    def say(self, line: str) -> None:
        """Print once for all ranks."""
        if self.rank == 0:
            print_line(line)

    def seed(self, number: int) -> None:
        """Seed this rank's device. (Where CUDA is not in use, torch.manual_seed takes a hundred times as long.)"""
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)
        else:
            torch.default_generator.manual_seed(number)

    def sum(self, *values: float) -> list[float]:
        """Each value added up over all ranks, in double precision: counts stay exact."""
        return add_up(torch.tensor(values, dtype=torch.float64, device=self.device))

    def gather(self, value: int) -> list[int]:
        """The values of all ranks, by rank. No rank returns before all have called."""
        values = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        values[self.rank] = value
        return add_up(values)

    def broadcast(self, content: bytes, source: int) -> bytearray:
        """`content` of rank `source`, on all ranks. (torch's own for objects needs numpy, and unpickles what comes.)"""
        size = self.gather(len(content))[source]
        received = bytearray(content if self.rank == source else size)
        shared = torch.frombuffer(received, dtype=torch.uint8)
        for start in range(0, size, BROADCAST_CHUNK):
            chunk = shared[start : start + BROADCAST_CHUNK]
            on_device = chunk.to(self.device)
            dist.broadcast(on_device, source)
            chunk.copy_(on_device)
        return received

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A ConfigError inside, on any rank, ends all of them: said once, by the first rank that has one."""
        problem = None
        try:
            yield
        except ConfigError as error:
            problem = error
        troubled = [rank for rank, has_one in enumerate(self.gather(problem is not None)) if has_one]
        if not troubled:
            return
        if self.rank == troubled[0]:
            print(f"trainer: {socket.gethostname()}: {problem}", file=sys.stderr, flush=True)
        self.gather(0)  # torchrun ends all its workers as soon as one has exited, which must not be before it is said
        sys.exit(2)

    def expect_quick_steps(self) -> None:
        """The first step is behind all ranks: wait less long for a peer from here on."""
        # Public since torch 2.14, where the older, private one warns.
        set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
        set_timeout(STEP_TIMEOUT)


@contextlib.contextmanager
def joined(device: str) -> Iterator[World]:
    """Meet the other ranks as torchrun's environment says; without it, be a world of one. Leave them on the way out."""
    alone = "WORLD_SIZE" not in os.environ
    rank, local_rank, world_size, local_world_size = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1"))
    )
    try:
        world = World(rank, local_rank, world_size, choose_device(device, local_rank, local_world_size))
    except ConfigError as error:
        refuse(error, speaks=local_rank == 0)  # all ranks of a host have the same GPUs
    # Said before meeting the others: when they do not come, this tells who did.
    print_line(
        f"start rank:{rank} world_size:{world_size} local_rank:{local_rank} host:{socket.gethostname()} "
        f"pid:{os.getpid()} device:{world.device} torch:{torch.__version__} python:{platform.python_version()} "
        f"threads:{torch.get_num_threads()}"
    )
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    dist.init_process_group(
        backend="nccl" if world.device.type == "cuda" else "gloo",
        timeout=FIRST_STEP_TIMEOUT,
        rank=rank,
        world_size=world_size,
        # Alone: a store without a port, and no other code path than with many.
        store=dist.HashStore() if alone else None,  # type: ignore[attr-defined]
    )
    crashed = False
    try:
        yield world
    except Exception:
        crashed = True
        raise
    finally:
        # After an error NCCL would first wait for the peers, who wait for us, and the error would show only after the
        # time-out. The end of the process frees what it holds.
        if not (crashed and world.device.type == "cuda"):
            dist.destroy_process_group()


def add_up(tensor: Tensor) -> list[Any]:
    """`tensor` added up over all ranks, as a list."""
    dist.all_reduce(tensor)
    LAST_SENT.append(tensor)
    return tensor.tolist()


def choose_device(wanted: str, local_rank: int, local_world_size: int) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_world_size > gpus:
        raise ConfigError(
            f"{socket.gethostname()}: {local_world_size} ranks, but torch {torch.__version__} sees {gpus} GPUs; "
            "start at most one rank per GPU, or use --device cpu"
        )
    return torch.device("cuda", local_rank)


def print_line(line: str) -> None:
    """In one write: with `print`, a line of another rank on the same pipe may come between the text and its newline."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class StopSignal:
    """SIGTERM to any rank stops all ranks at the same step.

    A rank that stopped by itself would leave its peers waiting in a collective, so they vote at every step boundary.
    The vote travels while the next step is computed and is read at the boundary after it, when it has long arrived:
    that costs one step of delay, and next to no time.
    """

    def __init__(self, world: World) -> None:
        self._device = world.device
        self._asked = False
        self._vote = torch.zeros(1, device=world.device)
        self._travelling: dist.Work | None = None
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """For all ranks to call at every step boundary; returns the same on all of them."""
        agreed = False
        if self._travelling is not None:
            self._travelling.wait()
            agreed = bool(self._vote.item())
        self._vote = torch.tensor([float(self._asked)], device=self._device)
        self._travelling = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, async_op=True)
        return agreed
