"""How the ranks' models are kept the same: gradients averaged by DDP, sent small where the network is slow, or the
models themselves averaged now and then (local SGD)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config, ConfigError
from trainer.world import World


def distributed(model: nn.Module, config: Config, world: World, first_step: int) -> DistributedDataParallel:
    """Raises ConfigError when the backend cannot send what --compress says."""
    power = compression(config, world, first_step)
    ddp = DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=config.bucket_mb, static_graph=config.static_graph
    )
    if config.compress == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif config.compress == "bf16":
        ddp.register_comm_hook(None, lambda _, bucket: bf16_compress(bucket))  # DDP would refuse it for its types
    elif power is not None:
        ddp.register_comm_hook(power, powerSGD_hook if dist.get_backend() == "nccl" else powersgd_in_turn())
    return ddp


def compression(config: Config, world: World, first_step: int) -> PowerSGDState | None:
    """What powersgd needs; None for the others. Tries what has to go over the network."""
    if config.compress == "bf16":
        try:
            dist.all_reduce(torch.ones(2, dtype=torch.bfloat16, device=world.device))
        except RuntimeError as error:
            raise ConfigError(
                f"--compress bf16: {dist.get_backend()} cannot add up bf16; use --compress fp16"
            ) from error
    if config.compress != "powersgd":
        return None
    # Exact steps first: the gradients of a young model cannot be told by a few directions.
    start = max(2, config.compress_after - first_step)
    try:
        return PowerSGDState(None, matrix_approximation_rank=config.compress_rank, start_powerSGD_iter=start)
    except ImportError as error:
        raise ConfigError("--compress powersgd: torch needs numpy for it: pip install numpy") from error


def bf16_compress(bucket: Any) -> Future[Tensor]:
    """As torch's bf16_compress_hook, which refuses every backend but NCCL, by its name."""
    small = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    arrived: Future[list[Tensor]] = dist.all_reduce(small, async_op=True).get_future()
    return arrived.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def powersgd_in_turn() -> Callable[..., Future[Tensor]]:
    """The hook for gloo: one bucket of gradients after the other.

    Some of what PowerSGD sends is sent by gloo's threads, when something else has arrived. With two buckets on their
    way it could go out in another order than on the other ranks, and be taken there for what it is not.
    """
    before: list[Future[Tensor]] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP would refuse these types
        if before:
            before.pop().wait()
        before.append(powerSGD_hook(state, bucket))
        return before[0]

    return hook


def average(model: nn.Module, world: World) -> None:
    """The mean of the ranks' models, on all of them."""
    for flat in flattened([*model.parameters(), *model.buffers()]):
        dist.all_reduce(flat.values)
        flat.put_back(flat.values / world.world_size)


def agree_on_buffers(model: nn.Module) -> None:
    """Between two steps the running means of batch norm are each rank's own. Take rank 0's, as DDP does in a step."""
    for flat in flattened(model.buffers()):
        dist.broadcast(flat.values, 0)
        flat.put_back(flat.values)


class Flat:
    """Tensors of one kind as one: a message for each would take a round trip for each."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.values = torch.cat([each.detach().flatten() for each in tensors])

    @torch.no_grad()
    def put_back(self, values: Tensor) -> None:
        for each, part in zip(self.tensors, values.split([each.numel() for each in self.tensors]), strict=True):
            each.copy_(part.view(each.shape))


def flattened(tensors: Iterable[Tensor]) -> list[Flat]:
    """Those of floating point; whole numbers only count batches, on all ranks alike."""
    kinds: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for each in tensors:
        if each.is_floating_point():
            kinds[each.dtype].append(each)
    return [Flat(some) for some in kinds.values()]
