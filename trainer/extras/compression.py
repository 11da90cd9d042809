"""Send gradients with fewer bytes: as 16-bit numbers, or by PowerSGD as thin matrices (arXiv:1905.13727).

DDP calls a hook with each bucket of gradients, and the hook returns a future of their mean over all ranks
(https://pytorch.org/docs/stable/ddp_comm_hooks.html).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config, ConfigError
from trainer.dist import World


def compress(ddp: DistributedDataParallel, config: Config, world: World, first_step: int) -> None:
    """Register the hook of --compress. Raises ConfigError when the backend cannot do it."""
    if config.compress == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif config.compress == "bf16":
        check_bf16(world.device)
        ddp.register_comm_hook(None, lambda _, bucket: bf16_hook(bucket))  # DDP would refuse its types
    elif config.compress == "powersgd":
        state = powersgd_state(config, first_step)
        ddp.register_comm_hook(state, powerSGD_hook if dist.get_backend() == "nccl" else powersgd_one_by_one())


def check_bf16(device: torch.device) -> None:
    try:
        dist.all_reduce(torch.ones(2, dtype=torch.bfloat16, device=device))
    except RuntimeError as error:
        raise ConfigError(f"--compress bf16: {dist.get_backend()} cannot add up bf16; use --compress fp16") from error


def bf16_hook(bucket: Any) -> Future[Tensor]:
    """Like torch's bf16_compress_hook, which refuses every backend but NCCL by its name."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    future: Future[list[Tensor]] = dist.all_reduce(compressed, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def powersgd_state(config: Config, first_step: int) -> PowerSGDState:
    # Exact steps first: early gradients do not fit into few directions.
    start = max(2, config.compress_after - first_step)
    try:
        return PowerSGDState(None, matrix_approximation_rank=config.compress_rank, start_powerSGD_iter=start)
    except ImportError as error:
        raise ConfigError("--compress powersgd: torch needs numpy for it: pip install numpy") from error


def powersgd_one_by_one() -> Callable[..., Future[Tensor]]:
    """The hook for gloo: one bucket of gradients after the other.

    PowerSGD sends some of its messages from gloo's threads, when others have arrived. With two buckets in flight, the
    ranks could send these in different orders, and would then add up parts of different buckets.
    """
    in_flight: list[Future[Tensor]] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP would refuse these types
        if in_flight:
            in_flight.pop().wait()
        in_flight.append(powerSGD_hook(state, bucket))
        return in_flight[0]

    return hook
