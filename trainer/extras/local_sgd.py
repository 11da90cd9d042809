"""Local SGD: ranks train alone and average their models now and then, which sends less (arXiv:1805.09767)."""

from __future__ import annotations

from torch import nn

from trainer.dist import World


def average_models(model: nn.Module, world: World) -> None:
    world.average_tensors([*model.parameters(), *model.buffers()])
