"""The models: a small CNN that needs torch alone, and torchvision's by name. Never loads pretrained weights."""

from __future__ import annotations

import difflib

from torch import nn

from trainer.config import ConfigError


def build(name: str, channels: int, classes: int) -> nn.Module:
    return digits_cnn(channels, classes) if name == "digits-cnn" else torchvision_model(name, classes)


def digits_cnn(channels: int, classes: int) -> nn.Module:
    """Without batch norm and dropout: the same images give the same gradients on any number of ranks."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),  # larger images fit too; those of 8x8 are 4x4 here already
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, classes),
    )


def torchvision_model(name: str, classes: int) -> nn.Module:
    try:
        from torchvision import models  # not at the top: most hosts do without it
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"--model {name} needs torchvision, which cannot be imported ({cause}); "
            "install the torchvision that belongs to this torch, or use --model digits-cnn"
        ) from error
    known = models.list_models(module=models)
    if name not in known:
        near = ", ".join(difflib.get_close_matches(name, [*known, "digits-cnn"])) or "resnet18"
        raise ConfigError(f"--model {name} is neither digits-cnn nor one of torchvision's; do you mean {near}?")
    # These two would return three outputs while training, and warn about how they draw their weights.
    extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **extra)
    return model
