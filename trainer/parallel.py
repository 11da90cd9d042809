"""How the ranks share the work of a model: DistributedDataParallel."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.dist import World
from trainer.extras.compression import compress


def wrap(model: nn.Module, config: Config, world: World, first_step: int) -> DistributedDataParallel:
    """Every rank holds the whole model; it averages gradients while backward computes the others (arXiv:2006.15704)."""
    if config.compile:
        model.compile()
    ddp = DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=config.bucket_mb, static_graph=config.static_graph
    )
    compress(ddp, config, world, first_step)
    return ddp
