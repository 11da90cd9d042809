"""Train an image classifier data-parallel: the whole story, top to bottom.

All ranks hold the same model. Every step takes `batch_size` images; each rank computes the gradients for its part of
them, DDP averages these over the ranks while they are still being computed, and all make the same update. Whatever is
random is a function of the seed and the number of the step: the position of a training is that number, and a resumed
run does exactly what an undisturbed one does.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from trainer import snapshot
from trainer.config import Config, ConfigError, spelled
from trainer.data import Data, Split, load
from trainer.models import build
from trainer.world import StopSignal, World, joined

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
WARM_UP = 0.05  # of all steps


@record  # under torchrun, a rank that fails leaves its traceback for torchrun's summary
def train(config: Config) -> None:
    with joined(config.device) as world:
        run(config, world)


def run(config: Config, world: World) -> None:
    started = time.monotonic()
    world.say(" ".join(["config", *(f"{key}:{value}" for key, value in config.as_dict().items())]))
    with world.together():
        out = make_folder(config.out)
        data = load(config, world.device)
        check_batch_size(config, data, world)
        torch.manual_seed(config.seed)
        model = build(config.model, data.channels, data.classes).to(world.device)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    parameters = sum(each.numel() for each in model.parameters())
    world.say(f"data train:{data.train.size} test:{data.test.size} classes:{data.classes} parameters:{parameters}")

    rehearse(ddp, optimizer, data.train)
    world.expect_quick_steps()

    step, steps_per_epoch = 0, data.train.size // config.batch_size
    state = snapshot.load_newest(out, world)
    if state is not None:
        with world.together():
            refuse_other_training(config, state["config"])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        where = f"epoch:{epoch_of(step, steps_per_epoch)} step:{step}"
        world.say(f"resumed {where} from:{out} (another --out starts afresh)")

    step = fit(config, world, data, ddp, optimizer, step)
    where = f"epoch:{epoch_of(step, steps_per_epoch)} step:{step}"
    if step < config.epochs * steps_per_epoch:
        world.say(f"stopped {where} seconds:{time.monotonic() - started:.1f}")
        return
    loss, accuracy = evaluate(model, data.test, config.batch_size, world)
    seconds = time.monotonic() - started
    world.say(f"done {where} test_loss:{loss:.4f} test_acc:{accuracy:.4f} seconds:{seconds:.1f}")


def fit(
    config: Config, world: World, data: Data, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int
) -> int:
    """Train from `step` on. Return the step at which it ended: the last one, or an earlier one after SIGTERM."""
    model, batch_size = ddp.module, config.batch_size
    steps_per_epoch = data.train.size // batch_size  # what does not fill a batch is left out: other images each epoch
    last_step = config.epochs * steps_per_epoch
    save_every = config.save_every or steps_per_epoch
    first_step = step
    stop = StopSignal(world)
    clock, timed_steps = time.monotonic(), 0

    while step < last_step and not stop.agreed():
        epoch, position = divmod(step, steps_per_epoch)
        if position == 0 or step == first_step:
            shuffler = torch.Generator().manual_seed(seed_of(config.seed, epoch))
            order = torch.randperm(data.train.size, generator=shuffler)
        batch = order[position * batch_size : (position + 1) * batch_size]
        images, labels = data.train.batch(batch[world.rank :: world.world_size])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.lr, step, last_step)
        world.seed(seed_of(config.seed, step * world.world_size + world.rank))  # for dropout and the like

        logits = ddp(images)
        loss = cross_entropy(logits, labels, reduction="sum")
        # DDP takes the mean over the ranks; so scaled, it is the mean over the images, however they are divided.
        (loss * world.world_size / batch_size).backward()
        optimizer.step()
        optimizer.zero_grad()
        step, timed_steps = step + 1, timed_steps + 1

        if step % config.log_every == 0 or step == first_step + 1:
            right = (logits.argmax(dim=1) == labels).sum()
            total_loss, total_right = world.sum(loss.item(), right.item())
            step_time = (time.monotonic() - clock) / timed_steps
            world.say(
                f"epoch:{epoch + 1} step:{step} loss:{total_loss / batch_size:.4f} acc:{total_right / batch_size:.4f} "
                f"samples/s:{batch_size / step_time:.0f} step_time:{step_time:.4f} "
                f"lr:{optimizer.param_groups[0]['lr']:.4f}"
            )
            clock, timed_steps = time.monotonic(), 0
        if step % save_every == 0 or step == last_step:
            save(config, world, step, model, optimizer)
            clock, timed_steps = time.monotonic(), 0
        if step % steps_per_epoch == 0 and step < last_step:
            test_loss, test_accuracy = evaluate(model, data.test, batch_size, world)
            world.say(f"epoch:{epoch + 1} step:{step} test_loss:{test_loss:.4f} test_acc:{test_accuracy:.4f}")
            clock, timed_steps = time.monotonic(), 0

    if step < last_step:
        save(config, world, step, model, optimizer)
    return step


def rehearse(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, split: Split) -> None:
    """One pass forward and backward that changes nothing.

    After its first backward pass DDP lays out the gradients anew, and a sum over three ranks or more is rounded
    according to the place in that layout. Were the first pass a real step, that of a resumed run would be rounded
    otherwise than the same step of the undisturbed run.
    """
    ddp.eval()  # or batch norm would learn from it
    ddp(split.images[:2]).sum().backward()
    optimizer.zero_grad()
    ddp.train()


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, batch_size: int, world: World) -> tuple[float, float]:
    """Mean loss and accuracy over `split`. Each rank takes its part, whatever its length: every image counts once."""
    agree_on_buffers(model)
    model.eval()
    loss = right = seen = 0.0
    mine = torch.arange(split.size)[world.rank :: world.world_size]
    at_once = max(1, batch_size // world.world_size)
    for start in range(0, len(mine), at_once):
        images, labels = split.batch(mine[start : start + at_once])
        logits = model(images)
        loss += cross_entropy(logits, labels, reduction="sum").item()
        right += (logits.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    model.train()
    loss, right, seen = world.sum(loss, right, seen)
    return loss / seen, right / seen


def save(config: Config, world: World, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    agree_on_buffers(model)
    state = {
        "step": step,
        "config": config.as_dict(),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    snapshot.save(Path(config.out), state, world)


def agree_on_buffers(model: nn.Module) -> None:
    """Between two steps the running means of batch norm are each rank's own. Take rank 0's, as DDP does in a step."""
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def learning_rate(highest: float, step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine. A function of the step: there is nothing to save."""
    warm_up = max(1, int(WARM_UP * steps))
    if step < warm_up:
        return highest * (step + 1) / warm_up
    return highest * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def seed_of(seed: int, number: int) -> int:
    return seed * 2**32 + number


def epoch_of(step: int, steps_per_epoch: int) -> int:
    """The epoch to which the first `step` steps have come, counted from 1 as in all lines of the log."""
    return math.ceil(step / steps_per_epoch)


def make_folder(out: str) -> Path:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: this folder cannot be made: {error.strerror}") from error
    return Path(out)


def check_batch_size(config: Config, data: Data, world: World) -> None:
    if not world.world_size <= config.batch_size <= data.train.size:
        raise ConfigError(
            f"--batch-size {config.batch_size} must be at least the number of ranks, {world.world_size}, "
            f"and at most that of the training images, {data.train.size}"
        )


def refuse_other_training(config: Config, saved: dict[str, Any]) -> None:
    """Only a run whose steps are the same can go on from a snapshot."""
    for key in ("model", "data", "image_size", "samples", "classes", "batch_size", "seed"):
        if saved[key] != getattr(config, key):
            name = spelled(key)
            raise ConfigError(
                f"the snapshots in {config.out} are of a run with {name} {saved[key]}, not {getattr(config, key)}; "
                f"give {name} {saved[key]} to go on with it, or another --out to start afresh"
            )
