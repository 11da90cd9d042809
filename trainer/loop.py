"""The loop of `python -m trainer`, from top to bottom: setup, loop, evaluation, saving. train.py is a short form of it.

Every rank runs this file and holds the same model. A step takes `--batch-size` samples. Each rank computes gradients
for its share of them, DDP averages the gradients over all ranks, and all ranks make the same update.

Everything random is a function of the seed and the step. So the step is all that a resumed run must know about its
position, and a resumed run does exactly what an undisturbed run does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer import checkpoint, metrics
from trainer.checkpoint import Writer
from trainer.config import Config, ConfigError
from trainer.data import PADDING, Batch, Data, Sampling, Split, check_batch_size, every_sample, seed_of
from trainer.datasets import load
from trainer.dist import SAVE, STOP, Requests, World, autocast, set_precision
from trainer.extras import local_sgd
from trainer.extras.ema import EMA
from trainer.extras.mixing import Mix, make_mix
from trainer.extras.profiler import Profiler
from trainer.extras.samples import find_decoder, print_sample
from trainer.model import build, count_correct, make_loss, prepare_model
from trainer.optim import learning_rate, make_optimizer
from trainer.parallel import full, keep_gradients_local, snapshots_of, wrap


@dataclass(frozen=True)
class Training:
    """Everything that a step needs. `model` is your module; call `wrapped` in training."""

    config: Config
    world: World
    data: Data
    sampling: Sampling
    model: nn.Module
    wrapped: nn.Module
    on_meta: nn.Module | None  # a copy without weights, to count operations
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    first_step: int  # 0, or the step of the snapshot from which the run resumed
    loss_of: Callable[[Tensor, Tensor], Tensor]  # from logits and targets
    ema: EMA | None  # the moving average of the weights
    mix: Mix | None  # mixes the images of a micro-batch

    @property
    def last_step(self) -> int:
        return self.config.max_steps or self.config.epochs * self.sampling.steps_per_epoch

    def position(self, step: int) -> str:
        """Counted from 1, as in all lines of the log."""
        return f"epoch:{math.ceil(step / self.sampling.steps_per_epoch)} step:{step}"


def run(config: Config, world: World) -> None:
    started = time.monotonic()
    world.print(" ".join(["config", *(f"{key}:{value}" for key, value in config.as_dict().items())]))
    with world.fail_together():
        out = checkpoint.make_folder(config.out)
        if not config.tests_weights:
            checkpoint.check_same_kind(out, config.parallel)
        memory = checkpoint.memory_folder(config)
    training = setup(config, world, out, memory)
    if config.eval_only:
        loss, accuracy = test(training, training.first_step)
        world.print(f"evaluated {training.position(training.first_step)} test_loss:{loss:.4f} test_acc:{accuracy:.4f}")
        return
    with world.fail_together():
        tracker = metrics.Tracker(config, out, training.first_step) if world.rank == 0 else None
    log = metrics.Log(config, world, training.data, training.wrapped, tracker)
    writer = snapshots_of(config).make_writer(out, config.keep, world)
    memory_writer = snapshots_of(config).make_writer(memory, checkpoint.KEEP_IN_MEMORY, world) if memory else None
    writers = [each for each in (memory_writer, writer) if each]
    try:
        step = train(training, log, writer, memory_writer)
    except metrics.NotFiniteError as error:
        for each in writers:
            each.close()
        world.exit_together(1, str(error), speaker=error.rank)
    except BaseException:
        for each in writers:
            each.close_alone()
        raise
    problems = [each.close() for each in writers]
    checkpoint.exit_if_not_saved(world, problems[-1] if writer else None)
    if step < training.last_step:
        world.print(f"stopped {training.position(step)} seconds:{time.monotonic() - started:.1f}")
    else:
        loss, accuracy = test(training, step)
        log.summary()
        log.record(step, {"test_loss": loss, "test_acc": accuracy})
        result = f"test_loss:{loss:.4f} test_acc:{accuracy:.4f} seconds:{time.monotonic() - started:.1f}"
        world.print(f"done {training.position(step)} {result}")
    log.close()


def setup(config: Config, world: World, out: Path | None, memory: Path | None = None) -> Training:
    """Load the data, build the model, and resume from the newest snapshot in `out` or `memory`.

    What cannot work raises ConfigError on some rank. `fail_together` then ends all ranks with one message.
    """
    with world.fail_together():
        set_precision(config.precision, world.device)
        data = load(config, world.device)
        check_batch_size(config, data.train.size, world.world_size)
        torch.manual_seed(config.seed)  # the same first weights on all ranks
        model = build(config.model, data, config.context)
        on_meta = metrics.meta_copy(model)
        model = prepare_model(model, config, world.device)
        mix = make_mix(config, data)
        if config.sample_tokens:
            find_decoder(config, data)
    sampling = Sampling(
        data.train.size, config.batch_size, config.seed, world.rank, world.world_size, config.grad_accum_steps
    )
    metrics.print_plan(config, world, data, sampling, model)
    state = snapshots_of(config).load_newest(out, world, memory) if out and not config.tests_weights else None
    first_step = state["step"] if state else 0
    with world.fail_together():
        if state:
            checkpoint.check_same_training(config, state["config"])
        elif config.init_from:
            if world.rank == 0 or config.parallel == "fsdp":  # DDP sends the weights of rank 0 to all
                world.print(checkpoint.load_weights(config.init_from, model))
        elif config.eval_only:
            raise ConfigError(f"--eval-only: there is no snapshot in {out}; give --out or --init-from")
    with world.fail_together():
        wrapped = wrap(model, config, world, first_step)
        optimizer = make_optimizer(config, model, world.device)
        scaler = torch.amp.GradScaler(world.device.type, enabled=config.precision == "fp16")
        ema = EMA(model, config.ema) if config.ema else None
        if state:
            snapshots_of(config).restore(state, model, optimizer, ema)
            scaler.load_state_dict(state["scaler"] or scaler.state_dict())  # empty without --precision fp16
    loss_of = make_loss(config)
    training = Training(
        config, world, data, sampling, model, wrapped, on_meta, optimizer, scaler, first_step, loss_of, ema, mix
    )
    if state:
        before = f"from:{state['folder']} (another --out starts from scratch) ranks_before:{state['world_size']}"
        world.print(f"resumed {training.position(first_step)} {before}")
    return training


def train(training: Training, log: metrics.Log, writer: Writer | None, in_memory: Writer | None = None) -> int:
    """Train from the first step to the last. Return the step that was reached: an earlier one after SIGTERM."""
    config, world, steps_per_epoch = training.config, training.world, training.sampling.steps_per_epoch
    step, last_step = training.first_step, training.last_step
    if step >= last_step:
        return step
    save_every, eval_every = config.save_every or steps_per_epoch, config.eval_every or steps_per_epoch
    unchecked: list[Tensor] = []  # losses of this rank that nobody has looked at yet: looking waits for the GPU
    batches = warm_up(training, log)
    requests = Requests(world)
    profiler = Profiler(config, world, training.first_step)
    log.timer.lap("between")

    while step < last_step:
        # 1. Has anybody asked to stop, or for a snapshot? All ranks agree on it at the same step.
        request = requests.agreed()
        if request == STOP:
            break
        if request == SAVE:
            log.timer.lap("other")
            save(training, writer, step, unchecked, f"saved {training.position(step)}")
            log.timer.lap("between")

        # 2. The step itself.
        rate = learning_rate(config, step, last_step)
        for group in training.optimizer.param_groups:
            group["lr"] = rate
        logged = (step + 1) % config.log_every == 0 or step == training.first_step
        profiler.before(step + 1)
        loss, correct, grad_norm = train_step(training, log, batches, step, logged)
        step += 1
        unchecked.append(loss)
        profiler.after(step)

        # 3. Log, save, evaluate. Reading a loss waits for the GPU, so it is done only where a line is printed.
        epoch = math.ceil(step / steps_per_epoch)
        if logged:
            metrics.check_finite(world, training.sampling, step, unchecked)
            step_time = log.step(epoch, step, loss.item(), correct.item(), float(grad_norm), rate)
            requests.set_pace(step_time)
        log.timer.lap("other")
        if step % save_every == 0 or step == last_step:
            save(training, writer, step, unchecked)
        if config.save_memory_every and step % config.save_memory_every == 0 and step < last_step:
            save(training, in_memory, step, unchecked)
        if step % eval_every == 0 and step < last_step:
            log.test(epoch, step, *test(training, step))
        log.timer.lap("between")  # snapshots and tests are not part of a step

    profiler.close(step)
    if step < last_step:
        save(training, writer, step, unchecked)
    return step


def warm_up(training: Training, log: metrics.Log) -> Iterator[Batch]:
    """Return all batches from the first step on, after one forward and backward pass that changes nothing.

    After its first backward pass, DDP rearranges its gradient buckets. The place of a gradient in a bucket decides in
    which order three or more ranks add it up, and so how it is rounded. If the first pass were a real step, a resumed
    run would round that step differently from the undisturbed run.
    """
    world, model = training.world, training.model
    seed_data(training, training.first_step, 0)
    batches = training.data.train.batches(training.sampling.steps(training.first_step, training.last_step))
    first = next(batches)
    log.count_flops(training.on_meta, first.inputs)
    buffers = [buffer.clone() for buffer in model.buffers()]  # batch norm would learn from this pass
    forward(training, training.wrapped, first)[1].backward()
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    training.optimizer.zero_grad()
    world.gather(0)
    world.expect_quick_steps()  # from here on, a rank that hangs is noticed after minutes, not half an hour
    return itertools.chain([first], batches)


def train_step(
    training: Training, log: metrics.Log, batches: Iterator[Batch], step: int, logged: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of the loss and of correct answers over this rank's samples, and the norm of the gradient.

    The last two are computed only where they are `logged`.
    """
    config, world, optimizer, scaler = training.config, training.world, training.optimizer, training.scaler
    log.timer.lap("other")
    alone = config.local_sgd > 0 and step >= config.compress_after
    # The loss is a sum over samples, as ranks may have different numbers of them. DDP divides the sum of all ranks by
    # their number; this factor makes it the mean over the batch.
    scale = world.world_size / (config.batch_size * training.data.targets)
    loss = correct = grad_norm = torch.zeros((), device=world.device)

    for micro_step in range(config.grad_accum_steps):
        seed_data(training, step, micro_step)
        batch = next(batches)
        seed_model(training, step, micro_step)
        if training.mix:
            batch = training.mix(batch)
        log.timer.lap("data")
        # Gradients add up on each rank; only the last micro-batch sends them.
        send = micro_step == config.grad_accum_steps - 1 and not alone
        with contextlib.nullcontext() if send else keep_gradients_local(training.wrapped):
            logits, micro_loss = forward(training, training.wrapped, batch)
            if logged:
                correct = correct + count_correct(logits.detach(), batch.targets)
            del logits  # with many classes, the largest tensor: freed before backward needs memory
            log.timer.lap("forward")
            scaler.scale(micro_loss * scale).backward()
            log.timer.lap("backward")
        loss = micro_loss.detach() if micro_step == 0 else loss + micro_loss.detach()

    if config.grad_clip or logged:
        scaler.unscale_(optimizer)  # fp16 gradients are scaled up; the norm must be that of the real ones
        grad_norm = full(nn.utils.clip_grad_norm_(training.model.parameters(), config.grad_clip or math.inf))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if training.ema:
        training.ema.update()
    log.timer.lap("optimizer")
    if alone and (step + 1) % config.local_sgd == 0:
        local_sgd.average_models(training.model, world)
        log.timer.lap("comm")
    log.steps += 1
    return loss, correct, grad_norm


def seed_data(training: Training, step: int, micro_step: int) -> None:
    """Seed what loading a micro-batch draws on this rank: augmentation."""
    seed_draws(training, step, micro_step, 0)


def seed_model(training: Training, step: int, micro_step: int) -> None:
    """Seed what is drawn once a micro-batch is loaded: mixing and dropout.

    A resumed run loads its first micro-batch in `warm_up`, so these draws must not follow those of the data.
    """
    seed_draws(training, step, micro_step, 1)


def seed_draws(training: Training, step: int, micro_step: int, stream: int) -> None:
    """The same numbers whenever this rank does this micro-batch, and other ones in each `stream`: 0 or 1."""
    config, world = training.config, training.world
    place = (step * config.grad_accum_steps + micro_step) * world.world_size + world.rank
    world.seed(seed_of(config.seed, 2 * place + stream))


def forward(training: Training, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits, and the sum of the loss over all targets."""
    config, inputs = training.config, batch.inputs
    if config.channels_last and inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    with autocast(config.precision, training.world.device):
        logits = model(inputs)
        return logits, training.loss_of(logits, batch.targets)


def test(training: Training, step: int) -> tuple[float, float]:
    """Return the loss and the accuracy on the test samples, of the moving average of the weights if there is one."""
    config, world, data = training.config, training.world, training.data
    with training.ema.swapped_in() if training.ema else contextlib.nullcontext():
        result = evaluate(training.model, data.test, config, world)
        if config.sample_tokens:
            print_sample(training.model, data, config, world, training.position(step))
    return result


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, config: Config, world: World) -> tuple[float, float]:
    """Return the mean loss and the accuracy over `split`. Ranks share the samples; each sample counts exactly once."""
    make_models_equal(model, config, world)
    model.eval()
    loss_of = make_loss(replace(config, label_smoothing=0.0, compile=False))
    samples_at_once = max(1, config.batch_size // world.world_size // config.grad_accum_steps)
    loss, correct = torch.zeros((), dtype=torch.float64, device=world.device), torch.zeros((), device=world.device)
    targets_seen, equally_often = 0, config.parallel == "fsdp"  # gathering sharded layers takes all ranks
    micro_batches = list(every_sample(split.size, world.rank, world.world_size, samples_at_once, equally_often))
    for (kind, _), batch in zip(micro_batches, split.batches(micro_batches), strict=True):
        with autocast(config.precision, world.device):
            logits = model(batch.inputs)
        if kind == PADDING:
            continue
        loss += loss_of(logits.float(), batch.targets)
        correct += count_correct(logits, batch.targets)
        targets_seen += batch.targets.numel()
    model.train()
    total_loss, total_correct, total = world.sum(loss.item(), correct.item(), targets_seen)
    return total_loss / total, total_correct / total


def save(
    training: Training, writer: Writer | None, step: int, unchecked: list[Tensor], announcement: str | None = None
) -> None:
    """Save a snapshot; all ranks must call. Rank 0 prints `announcement` once its file is on disk.

    The position in the data, the learning rate and all random numbers follow from the step.
    """
    metrics.check_finite(training.world, training.sampling, step, unchecked)  # never save a broken model
    make_models_equal(training.model, training.config, training.world)
    if writer:
        state = {
            "step": step,
            "config": training.config.as_dict(),
            "world_size": training.world.world_size,
            "torch": str(torch.__version__),
            "scaler": training.scaler.state_dict(),
            **snapshots_of(training.config).tensors_of(training.model, training.optimizer, training.ema),
        }
        writer.save(state, announcement if training.world.rank == 0 else None)


def make_models_equal(model: nn.Module, config: Config, world: World) -> None:
    """Before a test or a snapshot. Between steps, ranks differ in batch norm's running means, and under local SGD."""
    if config.local_sgd:
        local_sgd.average_models(model, world)
    else:
        world.broadcast_tensors(list(model.buffers()))
