"""The models by name: a small CNN that needs torch alone, GPT, torchvision's, your own. Never loads weights."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from trainer.config import Config, ConfigError
from trainer.data import Data

# blocks, heads, width
SIZES = {
    "gpt-tiny": (2, 4, 128),
    "gpt-mini": (6, 6, 384),
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}


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


def prepare_model(model: nn.Module, config: Config, device: torch.device) -> nn.Module:
    """Apply the flags that change how a model computes, and move it to `device`."""
    if config.activation_checkpointing:
        checkpoint_blocks(model, config.model)
    if config.sync_bn:
        if device.type != "cuda":
            raise ConfigError("--sync-bn: torch has it for GPUs only")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if config.parallel == "ddp":  # FSDP moves a block at a time, and keeps only this rank's part of it
        model = model.to(device)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # documented
    return model


def make_loss(config: Config) -> Callable[[Tensor, Tensor], Tensor]:
    """From logits and targets to the sum of the loss over all targets: one class per image, or one token per position.

    The logits of a GPT are its largest tensor. Compiled, this needs no copy of them in fp32.
    """

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        if not targets.is_floating_point():  # else, after mixup, they are the share of each class
            targets = targets.flatten()
        return cross_entropy(logits.flatten(0, -2), targets, reduction="sum", label_smoothing=config.label_smoothing)

    return torch.compile(loss_of) if config.compile else loss_of


def count_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """How many of the targets are right: `acc` is their share."""
    classes = targets.argmax(dim=-1) if targets.is_floating_point() else targets
    return (logits.argmax(dim=-1) == classes).sum()


def checkpoint_blocks(model: nn.Module, name: str) -> None:
    """Let every block forget its activations after forward, and compute them again in backward.

    A block is what a model of a ModuleList or a Sequential has of its own kind: not a layer of torch.nn's. (Batch norm
    counts a batch twice so; its running means move towards it twice as far.)
    """
    blocks = blocks_of(model)
    if not blocks:
        raise ConfigError(
            f"--activation-checkpointing: --model {name} has no blocks of its own in a ModuleList or Sequential"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # the names of the weights stay


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The outermost modules in a ModuleList or Sequential of the model that are not layers of torch.nn."""
    in_list = isinstance(model, (nn.ModuleList, nn.Sequential))
    blocks: list[nn.Module] = []
    for child in model.children():
        is_block = in_list and not type(child).__module__.startswith("torch.nn.")
        blocks += [child] if is_block else blocks_of(child)
    return list(dict.fromkeys(blocks))  # two parts of a model may share a block


class GPT(nn.Module):
    """(n, tokens) numbers to (n, tokens, vocabulary) logits of the token after each."""

    def __init__(self, blocks: int, heads: int, width: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight  # the same numbers read a token and say one
        for name, each in self.named_parameters():
            if each.dim() > 1:  # what adds to the sum of all blocks is made smaller the more of them there are
                adds = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(each, std=0.02 / (math.sqrt(2 * blocks) if adds else 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(self.gelu(self.up(self.norm2(x))))
        return x


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.all = nn.Linear(width, 3 * width, bias=False)  # query, key and value of all heads
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        query, key, value = (
            part.view(count, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.all(x).split(width, dim=2)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return out
