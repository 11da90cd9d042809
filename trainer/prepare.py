"""What comes before the first step: the data, the model, where a run goes on. Refuses what cannot work here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer import snapshot
from trainer.config import Config, ConfigError, spelled
from trainer.data import load
from trainer.models import build, checkpoint_blocks
from trainer.parallel import distributed
from trainer.samples import Data
from trainer.sampling import Sampling
from trainer.world import World

MOMENTUM = 0.9
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Training:
    """All that a step needs. `model` is what `ddp` wraps."""

    config: Config
    world: World
    data: Data
    sampling: Sampling
    model: nn.Module
    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    first_step: int  # behind those of the snapshot
    share: Tensor  # of one answer in the loss: a rank's is a sum, and DDP takes the mean over the ranks

    @property
    def last_step(self) -> int:
        return self.config.epochs * self.sampling.steps_per_epoch

    def where(self, step: int) -> str:
        """Counted from 1, as in all lines of the log."""
        return f"epoch:{math.ceil(step / self.sampling.steps_per_epoch)} step:{step}"


def prepare(config: Config, world: World, out: Path | None) -> Training:
    """The data, and the model at its beginning or as the newest snapshot in `out` has it."""
    with world.together():
        set_precision(config, world)
        data = load(config, world.device)
        sampling = Sampling(
            data.train.size, config.batch_size, config.seed, world.rank, world.world_size, config.grad_accum_steps
        )
        check_batch_size(config, data, world)
        torch.manual_seed(config.seed)
        model = build(config.model, data, config.context)
        if config.activation_checkpointing:
            checkpoint_blocks(model, config.model)
        if config.sync_bn:
            if world.device.type != "cuda":
                raise ConfigError("--sync-bn: torch has it for GPUs only")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = model.to(world.device)
        if config.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # it is in the manual
    optimizer = make_optimizer(config, model, world)
    scaler = torch.amp.GradScaler(world.device.type, enabled=config.precision == "fp16")
    tell_plan(config, world, data, sampling, model)

    step = 0
    state = snapshot.load_newest(out, world) if out else None
    if state is not None:
        with world.together():
            refuse_other_training(config, state["config"])
        model.load_state_dict(state["model"])
        for group in state["optimizer"]["param_groups"]:
            group["fused"] = is_fused(world)  # the snapshot may be from another kind of device
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state.get("scaler") or scaler.state_dict())
        step = state["step"]
    with world.together():
        if config.compile:
            model.compile()
        ddp = distributed(model, config, world, step)
    share = torch.tensor(world.world_size / (config.batch_size * data.targets), device=world.device)
    training = Training(config, world, data, sampling, model, ddp, optimizer, scaler, step, share)
    if state is not None:
        ranks = state.get("world_size", "?")
        world.say(f"resumed {training.where(step)} from:{out} (another --out starts afresh) ranks_before:{ranks}")
    return training


def make_optimizer(config: Config, model: nn.Module, world: World) -> torch.optim.Optimizer:
    fused = is_fused(world)
    if config.optimizer == "sgd":
        sgd = torch.optim.SGD(
            model.parameters(), lr=config.lr, momentum=MOMENTUM, weight_decay=config.weight_decay, fused=fused
        )
        return with_momentum(sgd) if fused else sgd
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=BETAS, fused=fused)


def is_fused(world: World) -> bool:
    return world.device.type == "cuda"


def with_momentum(optimizer: torch.optim.SGD) -> torch.optim.SGD:
    """The momentum of a beginning, which is none, in place. (torch 2.4 to 2.13: when the first step of a fused SGD is
    left out, as of fp16 the first ones mostly are, the next one takes for momentum what the memory held before.)"""
    for group in optimizer.param_groups:
        for each in group["params"]:
            optimizer.state[each]["momentum_buffer"] = torch.zeros_like(each)
    return optimizer


def highest_rate(config: Config) -> float:
    """Linear scaling (Goyal et al., 2017): with a batch k times as large, a step is k times as long."""
    return config.lr * config.batch_size / config.lr_batch if config.lr_batch else config.lr


def set_precision(config: Config, world: World) -> None:
    if world.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
        # torch.cuda.is_bf16_supported says yes to older ones too: they can pretend, at a fraction of the speed
        if config.precision == "bf16" and not torch.version.hip and torch.cuda.get_device_capability() < (8, 0):
            raise ConfigError(f"--precision bf16: {torch.cuda.get_device_name()} has no bf16; use fp16")


def tell_plan(config: Config, world: World, data: Data, sampling: Sampling, model: nn.Module) -> None:
    parameters = sum(each.numel() for each in model.parameters())
    left_out = data.train.size % config.batch_size
    world.say(
        f"data train:{data.train.size} test:{data.test.size} classes:{data.classes} parameters:{parameters} "
        f"steps_per_epoch:{sampling.steps_per_epoch} left_out:{left_out}"
    )
    world.say(
        f"optimizer name:{config.optimizer} lr:{highest_rate(config):.6f} given_lr:{config.lr} "
        f"batch_size:{config.batch_size} lr_batch:{config.lr_batch or config.batch_size}"
    )


def make_folder(out: str) -> Path:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: this folder cannot be made: {error.strerror}") from error
    return Path(out)


def check_batch_size(config: Config, data: Data, world: World) -> None:
    least = world.world_size * config.grad_accum_steps
    if not least <= config.batch_size <= data.train.size:
        pieces = f" times {config.grad_accum_steps} pieces each" if config.grad_accum_steps > 1 else ""
        raise ConfigError(
            f"--batch-size {config.batch_size} must be at least the number of ranks, {world.world_size}{pieces}, "
            f"and at most that of the training samples, {data.train.size}"
        )


def refuse_other_training(config: Config, saved: dict[str, Any]) -> None:
    """Only a run whose steps are the same can go on from a snapshot."""
    for key in ("model", "data", "image_size", "samples", "classes", "context", "batch_size", "seed", "optimizer"):
        if key in saved and saved[key] != getattr(config, key):
            name = spelled(key)
            raise ConfigError(
                f"the snapshots in {config.out} are of a run with {name} {saved[key]}, not {getattr(config, key)}; "
                f"give {name} {saved[key]} to go on with it, or another --out to start afresh"
            )
