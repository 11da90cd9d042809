"""Train a model data-parallel: the whole story, top to bottom.

All ranks hold the same model. Every step takes `batch_size` samples; each rank computes the gradients for its part of
them, DDP averages these over the ranks while they are still being computed, and all make the same update. Whatever is
random is a function of the seed and the number of the step: the position of a training is that number, and a resumed
run does exactly what an undisturbed one does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trainer import snapshot
from trainer.config import Config
from trainer.parallel import agree_on_buffers, average
from trainer.prepare import Training, highest_rate, make_folder, prepare
from trainer.requests import SAVE, STOP, Requests
from trainer.samples import Batch, Split
from trainer.sampling import everything, seed_of
from trainer.telling import Teller
from trainer.timing import flops_of
from trainer.tracking import Tracker
from trainer.world import World


def run(config: Config, world: World) -> None:
    started = time.monotonic()
    world.say(" ".join(["config", *(f"{key}:{value}" for key, value in config.as_dict().items())]))
    with world.together():
        out = make_folder(config.out)
        tracker = Tracker(config, out) if world.rank == 0 else None
    training = prepare(config, world, out)
    teller = Teller(config, world, training.data, training.ddp, tracker)
    writer = snapshot.Writer(out, config.keep) if world.local_rank == 0 else None

    step = fit(training, teller, writer)
    end_if_not_saved(world, writer.close() if writer else None)
    where, seconds = training.where(step), time.monotonic() - started
    if step < training.last_step:
        world.say(f"stopped {where} seconds:{seconds:.1f}")
    else:
        loss, accuracy = evaluate(training.model, training.data.test, config, world)
        teller.summary()
        if tracker:
            tracker.keep(step, {"test_loss": loss, "test_acc": accuracy})
        seconds = time.monotonic() - started
        world.say(f"done {where} test_loss:{loss:.4f} test_acc:{accuracy:.4f} seconds:{seconds:.1f}")
    if tracker:
        tracker.close()


def fit(training: Training, teller: Teller, writer: snapshot.Writer | None) -> int:
    """Train from the first step on. Return the step at which it ended: the last, or an earlier one after SIGTERM."""
    config, world, sampling = training.config, training.world, training.sampling
    step, last_step = training.first_step, training.last_step
    if step >= last_step:
        return step
    save_every = config.save_every or sampling.steps_per_epoch
    highest = highest_rate(config)
    losses: list[Tensor] = []  # of the steps since it was last looked whether they are numbers
    batches = started(training, teller)
    requests = Requests(world)
    teller.watch.lap("between")

    while step < last_step:
        request = requests.agreed()
        if request == STOP:
            break
        if request == SAVE:
            teller.watch.lap("other")
            save(training, writer, step, losses, f"saved {training.where(step)}")
            teller.watch.lap("between")
        rate = learning_rate(highest, step, last_step, config.warmup_fraction)
        for group in training.optimizer.param_groups:
            group["lr"] = rate
        told = (step + 1) % config.log_every == 0 or step == training.first_step

        loss, right, norm = take_step(training, teller, batches, step, told)
        step += 1
        losses.append(loss)

        epoch = math.ceil(step / sampling.steps_per_epoch)
        if told:
            stop_if_not_finite(training, step, losses)
            requests.pace(teller.step(epoch, step, loss.item(), right.item(), float(norm), rate))
        teller.watch.lap("other")
        if step % save_every == 0 or step == last_step:
            save(training, writer, step, losses)
        if step % sampling.steps_per_epoch == 0 and step < last_step:
            teller.test(epoch, step, *evaluate(training.model, training.data.test, config, world))
        teller.watch.lap("between")  # snapshots and tests are no part of a step

    if step < last_step:
        save(training, writer, step, losses)
    return step


def started(training: Training, teller: Teller) -> Iterator[Batch]:
    """All batches from the first step on. The first one has been through the model, forward and backward, for nothing.

    After its first backward pass DDP lays out the gradients anew, and a sum over three ranks or more is rounded
    according to the place in that layout. Were the first pass a real step, that of a resumed run would be rounded
    otherwise than the same step of the undisturbed run.
    """
    world, model = training.world, training.model
    seed_step(training, training.first_step)
    batches = training.data.train.batches(training.sampling.steps(training.first_step, training.last_step))
    first = next(batches)
    teller.flops = flops_of(model, first.inputs) if teller.peak else None
    buffers = [each.clone() for each in model.buffers()]  # batch norm would learn from it
    forward(training, training.ddp, first)[1].backward()
    for each, before in zip(model.buffers(), buffers, strict=True):
        each.copy_(before)
    training.optimizer.zero_grad()
    world.gather(0)
    world.expect_quick_steps()
    return itertools.chain([first], batches)


def take_step(
    training: Training, teller: Teller, batches: Iterator[Batch], step: int, told: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of the loss and, if it will be `told`, of right answers over this rank's part; the gradient's norm."""
    config, world, ddp, optimizer, scaler = (
        training.config, training.world, training.ddp, training.optimizer, training.scaler,
    )  # fmt: skip
    seed_step(training, step)
    teller.watch.lap("other")
    alone = config.local_sgd > 0 and step >= config.compress_after
    loss = right = norm = torch.zeros((), device=world.device)

    for piece in range(config.grad_accum_steps):
        batch = next(batches)
        teller.watch.lap("data")
        sends = piece == config.grad_accum_steps - 1 and not alone  # the gradients of all pieces are sent with the last
        with contextlib.nullcontext() if sends else ddp.no_sync():
            logits, piece_loss = forward(training, ddp, batch)
            if told:
                right = right + (logits.detach().argmax(dim=-1) == batch.targets).sum()
            del logits  # with many classes or tokens the greatest of all: gone before the gradients need room
            teller.watch.lap("forward")
            piece_loss.backward(scaler.scale(training.share))
            teller.watch.lap("backward")
        loss = piece_loss.detach() if piece == 0 else loss + piece_loss.detach()

    if config.grad_clip or told:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(training.model.parameters(), config.grad_clip or math.inf)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    teller.watch.lap("optimizer")
    if alone and (step + 1) % config.local_sgd == 0:
        average(training.model, world)
        teller.watch.lap("comm")
    teller.steps += 1
    return loss, right, norm


def seed_step(training: Training, step: int) -> None:
    """For dropout, moved images and the like: of a step and a rank, always the same."""
    world = training.world
    world.seed(seed_of(training.config.seed, step * world.world_size + world.rank))


def forward(training: Training, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits, and the loss as a sum over all that is to be said: for a sample its class, or every next token."""
    config = training.config
    inputs = batch.inputs
    if config.channels_last and inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    with autocast(config, training.world):
        logits = model(inputs)
        flat = logits.flatten(0, -2)
        loss = cross_entropy(flat, batch.targets.flatten(), reduction="sum", label_smoothing=config.label_smoothing)
    return logits, loss


def autocast(config: Config, world: World) -> contextlib.AbstractContextManager[object]:
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    return torch.autocast(world.device.type, kind) if kind else contextlib.nullcontext()


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, config: Config, world: World) -> tuple[float, float]:
    """Mean loss and accuracy over `split`. Each rank takes its part, whatever its length: every sample counts once."""
    agree(model, config, world)
    model.eval()
    at_once = max(1, config.batch_size // world.world_size // config.grad_accum_steps)
    loss, right = torch.zeros((), dtype=torch.float64, device=world.device), torch.zeros((), device=world.device)
    said = 0
    for batch in split.batches(everything(split.size, world.rank, world.world_size, at_once)):
        with autocast(config, world):
            logits = model(batch.inputs)
        flat, targets = logits.float().flatten(0, -2), batch.targets.flatten()
        loss += cross_entropy(flat, targets, reduction="sum")
        right += (flat.argmax(dim=-1) == targets).sum()
        said += len(targets)
    model.train()
    total_loss, total_right, total = world.sum(loss.item(), right.item(), said)
    return total_loss / total, total_right / total


def save(
    training: Training, writer: snapshot.Writer | None, step: int, losses: list[Tensor], announcement: str | None = None
) -> None:
    """For all ranks to call. The sampler's position, the learning rate and all chance follow from the step.

    `announcement`: a line for rank 0 to print when its snapshot is on disk.
    """
    stop_if_not_finite(training, step, losses)
    agree(training.model, training.config, training.world)
    if writer:
        state = {
            "step": step,
            "config": training.config.as_dict(),
            "world_size": training.world.world_size,
            "torch": str(torch.__version__),
            "model": training.model.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "scaler": training.scaler.state_dict(),
        }
        writer.save(state, announcement if training.world.rank == 0 else None)


def agree(model: nn.Module, config: Config, world: World) -> None:
    """Make the ranks' models one, before it is tested or saved."""
    if config.local_sgd:
        average(model, world)
    else:
        agree_on_buffers(model)


def end_if_not_saved(world: World, problem: Exception | None) -> None:
    """End all ranks when the last snapshot of a node is not on its disk."""
    troubled = [rank for rank, has_one in enumerate(world.gather(problem is not None)) if has_one]
    if troubled:
        world.end(1, f"{socket.gethostname()}: the last snapshot could not be written: {problem}", troubled[0])


def stop_if_not_finite(training: Training, step: int, losses: list[Tensor]) -> None:
    """End all ranks when a loss was not a number, naming the first step and rank that had it, and its samples.

    `losses`: of this rank, up to `step`, not looked at yet; emptied. In the step after, the gradients have carried it
    to all ranks.
    """
    wrong = torch.stack(losses).isfinite().logical_not().nonzero().flatten().tolist() if losses else []
    first = step - len(losses) + 1
    losses.clear()
    steps = training.world.gather(first + wrong[0] if wrong else -1)
    found = [step for step in steps if step >= 0]
    if found:
        step, rank = min(found), steps.index(min(found))
        samples = ",".join(map(str, training.sampling.mine(step - 1).tolist()))
        training.world.end(
            1,
            f"{socket.gethostname()}: the loss is not finite at step:{step} rank:{rank} samples:{samples}; "
            "a lower --lr, --grad-clip 1 or --precision bf16 may help, or look at these samples; "
            "the newest snapshot is from before",
            speaker=rank,
        )


def learning_rate(highest: float, step: int, steps: int, warm_up: float) -> float:
    """Linear warm-up, then half a cosine. A function of the step: there is nothing to save."""
    rising = max(1, int(warm_up * steps))
    if step < rising:
        return highest * (step + 1) / rising
    return highest * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
