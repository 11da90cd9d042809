"""The optimizer and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.config import Config


def make_optimizer(config: Config, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Matrices and convolutions decay; biases and norms do not (arXiv:1812.01187, section 3.1)."""
    fused = is_fused(device)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        sgd = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
        return with_momentum(sgd) if fused and config.momentum else sgd
    beta1, beta2 = config.beta_values
    return torch.optim.AdamW(groups, lr=config.lr, betas=(beta1, beta2), fused=fused)


def is_fused(device: torch.device) -> bool:
    """One kernel updates all parameters: faster on GPUs."""
    return device.type == "cuda"


def with_momentum(optimizer: torch.optim.SGD) -> torch.optim.SGD:
    """Start with a momentum of zero instead of none.

    With fp16, GradScaler mostly skips the first steps. From torch 2.4 to 2.13, the step after a skipped first step of a
    fused SGD uses uninitialized memory as momentum.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def peak_learning_rate(config: Config) -> float:
    """Linear scaling (Goyal et al., 2017, arXiv:1706.02677): k times the batch, k times the learning rate."""
    return config.lr * config.batch_size / config.lr_batch if config.lr_batch else config.lr


def learning_rate(config: Config, step: int, last_step: int) -> float:
    """Linear warm-up, then --schedule. A function of the step, so that nothing needs to be saved."""
    peak = peak_learning_rate(config)
    warmup = config.warmup_steps or int(config.warmup_fraction * last_step)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, last_step - warmup)
    if config.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        share = 1 - progress if config.schedule == "linear" else 1
    return config.min_lr + (peak - config.min_lr) * share
