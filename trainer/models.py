"""The models by name: a small CNN that needs torch alone, GPT, torchvision's, your own. Never loads weights."""

from __future__ import annotations

import difflib
import importlib
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.config import ConfigError
from trainer.gpt import GPT, SIZES
from trainer.samples import Data


def build(name: str, data: Data, context: int) -> nn.Module:
    """Raises ConfigError when there is no such model, or it does not fit the data."""
    if ":" in name:
        return users_model(name, data.classes)
    if (name in SIZES) != (data.channels == 0):
        known = ", ".join(SIZES) if data.channels == 0 else "digits-cnn or one of torchvision's"
        what = "tokens" if data.channels == 0 else "images"
        raise ConfigError(f"--model {name} is not for {what}: give {known}, or MODULE:FUNCTION of your own")
    if name in SIZES:
        return GPT(*SIZES[name], vocabulary=data.classes, context=context)
    return digits_cnn(data.channels, data.classes) if name == "digits-cnn" else torchvision_model(name, data.classes)


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


def users_model(name: str, classes: int) -> nn.Module:
    module, _, function = name.partition(":")
    try:
        model = getattr(importlib.import_module(module), function)(classes)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--model {name}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model {name} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


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
    base = name.removesuffix("-cifar") if name.startswith("res") else name
    if base not in known:
        near = ", ".join(difflib.get_close_matches(name, [*known, "digits-cnn"])) or "resnet18"
        raise ConfigError(f"--model {name} is neither digits-cnn nor one of torchvision's; do you mean {near}?")
    # These two would return three outputs while training, and warn about how they draw their weights.
    extra = {"aux_logits": False, "init_weights": False} if base in ("googlenet", "inception_v3") else {}
    model: nn.Module = models.get_model(base, weights=None, num_classes=classes, **extra)
    if base != name:  # the first layers would shrink an image of 32x32 to 8x8 before anything is seen in it
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def checkpoint_blocks(model: nn.Module, name: str) -> None:
    """Let every block forget its activations after forward, and compute them again in backward.

    A block is what a model of a ModuleList or a Sequential has of its own kind: not a layer of torch.nn's. (Batch norm
    counts a batch twice so; its running means move towards it twice as far.)
    """
    lists = [each for each in model.modules() if isinstance(each, (nn.ModuleList, nn.Sequential))]
    blocks = [each for one in lists for each in one if not type(each).__module__.startswith("torch.nn.")]
    if not blocks:
        raise ConfigError(
            f"--activation-checkpointing: --model {name} has no blocks of its own in a ModuleList or Sequential"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # the names of the weights stay
