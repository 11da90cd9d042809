"""How the ranks share a model: each has all of it (DDP), or each has a part of it (FSDP)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer import checkpoint
from trainer.checkpoint import Writer
from trainer.config import Config, ConfigError
from trainer.dist import World
from trainer.extras.compression import compress
from trainer.extras.ema import EMA
from trainer.model import blocks_of


def wrap(model: nn.Module, config: Config, world: World, first_step: int) -> nn.Module:
    """Return what to call in training. Make the optimizer afterwards, as FSDP replaces the parameters."""
    if config.parallel == "fsdp":
        return shard(model, config, world)
    if config.compile:
        # Inside DDP, torch cuts the graph at DDP's buckets, so that it can send them early. (model.compile() would skip
        # an nn.Sequential, as it skips all forward functions of torch's own files.)
        model.forward = torch.compile(model.forward)
    # All ranks read the same snapshot. To send its weights as well, each rank would copy them: more memory at once.
    can_omit = first_step and "init_sync" in signature(DistributedDataParallel).parameters  # not in torch 2.4
    unsent: dict[str, Any] = {"init_sync": False} if can_omit else {}
    # Every rank averages gradients with the others while backward still computes the rest (arXiv:2006.15704).
    ddp = DistributedDataParallel(
        model,
        gradient_as_bucket_view=True,
        bucket_cap_mb=config.bucket_mb,
        static_graph=config.static_graph,
        **unsent,
    )
    compress(ddp, config, world, first_step)
    return ddp


def shard(model: nn.Module, config: Config, world: World) -> nn.Module:
    """FSDP2: each rank keeps its part of every parameter, gradient and optimizer state (arXiv:2304.11277).

    A block's parameters are gathered right before it computes, and freed right after. So a rank needs memory for its
    part of the model and for one or two whole blocks.
    """
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise ConfigError(f"--parallel fsdp needs torch 2.6 or newer, not {torch.__version__}") from error
    # Gather bf16 copies, which halves what is sent; add gradients up in fp32.
    bf16 = config.precision == "bf16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    options: dict[str, Any] = {
        "mesh": init_device_mesh(world.device.type, (world.world_size,)),
        "mp_policy": policy,
        "reshard_after_forward": not config.no_reshard_after_forward,
    }
    for block in blocks_of(model):
        if config.compile:
            block.compile()  # block by block: FSDP's own work between the blocks cannot be compiled
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


@contextlib.contextmanager
def keep_gradients_local(wrapped: nn.Module) -> Iterator[None]:
    """Add up gradients on this rank without sending them. FSDP sends them: whole gradients would not fit."""
    with wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else contextlib.nullcontext():
        yield


class Snapshots(Protocol):
    """A module that saves and loads snapshots: checkpoint or sharded."""

    def make_writer(self, folder: Path, keep: int, world: World) -> Writer | None: ...
    def tensors_of(self, model: nn.Module, optimizer: Optimizer, ema: EMA | None) -> dict[str, Any]: ...
    def load_newest(self, folder: Path, world: World, memory: Path | None = None) -> dict[str, Any] | None: ...
    def restore(self, state: dict[str, Any], model: nn.Module, optimizer: Optimizer, ema: EMA | None) -> None: ...


def snapshots_of(config: Config) -> Snapshots:
    if config.parallel == "fsdp":
        from trainer import sharded  # importing it takes time

        return sharded
    return checkpoint


def full(value: Tensor) -> Tensor:
    """The value of a tensor whose parts may be on several ranks."""
    gathered: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered
