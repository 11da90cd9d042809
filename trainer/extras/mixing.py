"""Mixup and CutMix: train on mixtures of images and of their labels (arXiv:1710.09412, arXiv:1905.04899)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainer.config import Config, ConfigError
from trainer.data import Batch, Data

Mix = Callable[[Batch], Batch]


def make_mix(config: Config, data: Data) -> Mix | None:
    """None without --mixup and --cutmix. With both, each micro-batch gets one of them, at random."""
    if not config.mixup and not config.cutmix:
        return None
    flag = "--mixup" if config.mixup else "--cutmix"
    if not data.channels:
        raise ConfigError(f"{flag} is for images")
    v2: Any = import_transforms(flag)
    choices = []
    if config.mixup:
        choices.append(v2.MixUp(alpha=config.mixup, num_classes=data.classes))
    if config.cutmix:
        choices.append(v2.CutMix(alpha=config.cutmix, num_classes=data.classes))
    transform = v2.RandomChoice(choices)

    def mix(batch: Batch) -> Batch:
        inputs: Tensor
        inputs, targets = transform(batch.inputs, batch.targets)
        return Batch(inputs, targets)

    return mix


def import_transforms(flag: str) -> Any:
    """torchvision's transforms, version 2. Raises ConfigError if they cannot be imported."""
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{flag} needs torchvision, which cannot be imported ({cause})") from error
    return v2
