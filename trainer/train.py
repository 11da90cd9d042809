"""Train a model on many machines. This file and dist.py are a complete trainer: copy both, and change what you like.

    python train.py
    torchrun --nproc-per-node=2 train.py --epochs=3
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 train.py     # on both hosts

Every rank runs this file and holds the same model. A step takes `--batch-size` samples. Each rank computes gradients
for its share of them, DDP averages these gradients, and all ranks make the same update.

Everything random is a function of the seed and the step. So the step is all that a resumed run must know about its
position, and a resumed run does exactly what an undisturbed run does. `python -m trainer` has more (docs/trainer.md).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING or __package__:
    from .dist import SAVE, STOP, ConfigError, Requests, World, autocast, find, ignore_signals, joined, set_precision
else:  # run as a file, with dist.py next to it
    from dist import SAVE, STOP, ConfigError, Requests, World, autocast, find, ignore_signals, joined, set_precision


# --- 1. Configuration: one field is one flag, such as --batch-size


def flag(default: Any, text: str, *choices: str) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices or None})


@dataclass(frozen=True)
class Config:
    epochs: int = flag(5, "passes over the training samples")
    max_steps: int = flag(0, "steps; 0: those of --epochs")
    batch_size: int = flag(64, "samples per step of all ranks together: more hosts do not change the result")
    grad_accum_steps: int = flag(1, "micro-batches of a rank per step, for a batch that does not fit into memory")
    lr: float = flag(0.003, "highest learning rate")
    warmup_steps: int = flag(20, "steps until --lr is reached")
    weight_decay: float = flag(0.01, "of matrices and convolutions")
    grad_clip: float = flag(1.0, "maximum norm of the gradient; 0: no limit")
    precision: str = flag("fp32", "of matrix products", "fp32", "tf32", "bf16")
    compile: bool = flag(False, "torch.compile the model")
    workers: int = flag(0, "processes per rank that load samples ahead")
    log_every: int = flag(20, "steps between lines")
    eval_every: int = flag(0, "steps between tests; 0: once per epoch")
    save_every: int = flag(0, "steps between snapshots; 0: once per epoch")
    keep: int = flag(2, "snapshots to keep")
    seed: int = flag(0, "of all random numbers")
    device: str = flag("auto", "auto: cuda if there is a GPU", "auto", "cpu", "cuda")
    out: str = flag(os.environ.get("DDP_ORCH_OUTPUT_DIR", "out"), "folder of snapshots, from which a run resumes")


def parse(argv: list[str]) -> Config:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    for each in fields(Config):
        kind: Any = {"type": type(each.default), **each.metadata}
        if each.default is False:
            kind = {"action": "store_true", "help": each.metadata["help"]}
        parser.add_argument("--" + each.name.replace("_", "-"), default=each.default, **kind)
    return Config(**vars(parser.parse_args(argv)))


# --- 2. Model: put yours here


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def make_optimizer(model: nn.Module, config: Config, device: torch.device) -> torch.optim.Optimizer:
    """Matrices and convolutions decay; biases and norms do not (arXiv:1812.01187, section 3.1)."""
    groups = [  # the two moments of each parameter take twice the memory of the weights
        {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [each for each in model.parameters() if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, fused=device.type == "cuda")  # one kernel for all parameters


def learning_rate(config: Config, step: int, last_step: int) -> float:
    """Linear warm-up, then a cosine to zero (arXiv:1608.03983). It follows from the step: nothing to save."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, last_step - config.warmup_steps)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))


# --- 3. Data: put yours here, with __len__ and __getitem__


class Points(Dataset[Any]):  # is a point inside the circle?
    def __init__(self, seed: int, count: int) -> None:
        self.points = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point = self.points[index]
        return point + 0.01 * torch.randn(2), int(point.norm() < 0.8)  # random augmentation is exactly resumable


def datasets() -> tuple[Dataset[Any], Dataset[Any]]:  # to train, to test
    return Points(1, 6400), Points(2, 1000)


def seed_of(*numbers: int) -> int:
    return hash(numbers) % 2**32  # the same in every process; NumPy takes no larger ones


class Seeded(Dataset[Any]):
    """Seeds random numbers before each sample: its augmentation does not depend on the worker or rank that loads it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, seed_and_index: tuple[int, int]) -> Any:
        seed, index = seed_and_index
        random.seed(seed)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed seeds all devices: 0.2 ms
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        return self.dataset[index]


def micro_batches(config: Config, world: World, size: int, steps: range) -> Iterator[list[tuple[int, int]]]:
    """Those of this rank, each as a list of seeds and samples: what DataLoader calls a batch sampler.

    An epoch is a random order of all samples, cut into steps. The samples of a step are dealt to the ranks in turn.
    So there is no state to save, and the number of ranks may change. `size`: of the dataset.
    """
    for step in steps:
        epoch, place = divmod(step, size // config.batch_size)
        if place == 0 or step == steps.start:
            order = torch.randperm(size, generator=torch.Generator().manual_seed(config.seed + epoch)).tolist()
        samples = order[place * config.batch_size :][: config.batch_size]
        seeded = [(seed_of(config.seed, step, number), sample) for number, sample in enumerate(samples)]
        mine = seeded[world.rank :: world.world_size]
        for number in range(config.grad_accum_steps):
            yield mine[number :: config.grad_accum_steps]


# --- 4. The loop


def train(config: Config, world: World) -> None:
    with world.fail_together():  # a ConfigError on any rank ends all of them with one message
        set_precision(config.precision, world.device)
        Path(config.out).mkdir(parents=True, exist_ok=True)
        training_data, test_data = datasets()
        size = len(training_data)  # type: ignore[arg-type]  # it has a length
        least = world.world_size * config.grad_accum_steps
        if not least <= config.batch_size <= size:
            raise ConfigError(f"--batch-size {config.batch_size}: expected {least} to {size}, the number of samples")
    torch.manual_seed(config.seed)  # the same first weights on all ranks
    model = make_model().to(world.device)
    if config.compile:
        model.forward = torch.compile(model.forward)  # model.compile() skips nn.Sequential
    # DDP sends gradients in buckets while backward computes the next ones (arXiv:2006.15704). The view saves a copy of
    # all gradients. Add find_unused_parameters=True if a step may leave out parameters: it costs a walk of each graph.
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model, config, world.device)
    step = load(config, world, model, optimizer)
    per_epoch = size // config.batch_size
    last_step = config.max_steps or config.epochs * per_epoch
    eval_every, save_every = config.eval_every or per_epoch, config.save_every or per_epoch

    # From here on, a signal to any rank counts for all ranks, at the same step: SIGTERM stops, SIGUSR1 saves.
    requests = Requests(world)
    sampler: Any = micro_batches(config, world, size, range(step, last_step))
    options: Any = {"num_workers": config.workers, "pin_memory": world.device.type == "cuda"}  # copies run aside
    loader = DataLoader(Seeded(training_data), batch_sampler=sampler, worker_init_fn=ignore_signals, **options)
    batches = warm_up(config, world, wrapped, iter(loader)) if step < last_step else iter(())
    unchecked = torch.zeros((), device=world.device)  # losses that nobody has looked at: looking waits for the GPU
    since, steps_since = time.monotonic(), 0
    while step < last_step and (request := requests.agreed()) != STOP:
        if request == SAVE:
            save(config, world, model, optimizer, step, unchecked)
            world.print(f"saved step:{step}")
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, last_step)
        step_loss = torch.zeros((), device=world.device)
        for micro_batch in range(config.grad_accum_steps):
            send = micro_batch == config.grad_accum_steps - 1
            with contextlib.nullcontext() if send else wrapped.no_sync():  # gradients add up, and are sent once
                batch = next(batches)
                # Dropout: other numbers in each step and on each rank, and the same ones after a resume.
                world.seed(seed_of(config.seed, step, micro_batch, world.rank))
                loss = forward(config, world, wrapped, batch)[0]
                # DDP divides the sum of all ranks by their number; the factor makes it the mean over the batch.
                (loss * (world.world_size / config.batch_size)).backward()
            step_loss += loss.detach()
        if config.grad_clip:  # against rare huge gradients (arXiv:1211.5063)
            nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        unchecked += step_loss
        step, steps_since = step + 1, steps_since + 1
        where = f"epoch:{math.ceil(step / per_epoch)} step:{step}"
        if step % config.log_every == 0 or step == last_step:
            check_loss(world, step, unchecked)
            total, seconds = world.sum(step_loss.item(), time.monotonic() - since)
            step_time = seconds / steps_since / world.world_size
            requests.set_pace(step_time)  # the same on all ranks, and so is the step of the next vote
            world.print(f"{where} loss:{total / config.batch_size:.6f} step_time:{step_time:.4f}")
            since, steps_since = time.monotonic(), 0
        if step % save_every == 0 or step == last_step:
            save(config, world, model, optimizer, step, unchecked)
        if step % eval_every == 0 and step < last_step:
            world.print(f"{where} {test(config, world, model, test_data)}")
    if step < last_step:
        save(config, world, model, optimizer, step, unchecked)
    ending = f"stopped step:{step}" if step < last_step else f"done step:{step} {test(config, world, model, test_data)}"
    world.print(ending)


def warm_up(config: Config, world: World, wrapped: DistributedDataParallel, batches: Iterator[Any]) -> Iterator[Any]:
    """Return all batches, after one forward and backward pass that changes nothing.

    After its first backward pass, DDP rearranges its gradient buckets. They decide in which order three or more ranks
    add up a gradient. So if the first pass were a real step, a resumed run would round that step differently.
    """
    first = next(batches)
    buffers = [buffer.clone() for buffer in wrapped.buffers()]  # batch norm would learn from this pass
    forward(config, world, wrapped, first)[0].backward()
    for buffer, before in zip(wrapped.buffers(), buffers, strict=True):
        buffer.copy_(before)
    wrapped.zero_grad()
    world.gather(0)
    world.expect_quick_steps()  # from here on, a rank that hangs is noticed after minutes, not half an hour
    return itertools.chain([first], batches)


def forward(config: Config, world: World, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The sum of the loss over all samples, and how many answers are right."""
    inputs, targets = (each.to(world.device, non_blocking=True) for each in batch)
    with autocast(config.precision, world.device):
        logits = model(inputs)
        loss = cross_entropy(logits, targets, reduction="sum")
    return loss, (logits.argmax(dim=-1) == targets).sum()


# --- 5. Evaluation


@torch.no_grad()
def test(config: Config, world: World, model: nn.Module, dataset: Any) -> str:
    """Ranks share the samples; each sample counts exactly once. Without DDP, as ranks may have different numbers."""
    world.broadcast_tensors(list(model.buffers()))  # between steps, ranks differ in batch norm's running means
    model.eval()
    mine = [(number, number) for number in range(len(dataset))][world.rank :: world.world_size]
    loss, correct = 0.0, 0
    for batch in DataLoader(Seeded(dataset), batch_size=max(1, config.batch_size // world.world_size), sampler=mine):
        each_loss, each_correct = forward(config, world, model, batch)
        loss, correct = loss + each_loss.item(), correct + int(each_correct)
    model.train()
    total_loss, total_correct = (value / len(dataset) for value in world.sum(loss, correct))
    return f"test_loss:{total_loss:.4f} test_acc:{total_correct:.4f}"


# --- 6. Saving: one process per node writes, so that hosts need no shared disk


def check_loss(world: World, step: int, unchecked: Tensor) -> None:  # all ranks must call
    if not math.isfinite(world.sum(unchecked.item())[0]):
        reason = f"the loss is not finite at step:{step} or shortly before; look for bad samples, or try a lower --lr"
        world.exit_together(1, reason, speaker=0)


def save(config: Config, world: World, model: nn.Module, optimizer: Any, step: int, unchecked: Tensor) -> None:
    """All ranks must call. Samples, learning rate and random numbers follow from the number of the step."""
    check_loss(world, step, unchecked)  # never save a broken model
    world.broadcast_tensors(list(model.buffers()))
    if world.local_rank:
        return
    folder = Path(config.out)
    state = {"step": step, "config": asdict(config), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    content = io.BytesIO()
    torch.save(state, content)
    aside = folder / f".rank-{world.rank}.tmp"  # on a shared disk, each node has its own
    try:
        with aside.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / f"step-{step:09d}.pt")  # publishes the whole file at once
    finally:
        aside.unlink(missing_ok=True)  # half a snapshot would keep a full disk full
    for old in sorted(folder.glob("step-*.pt"))[: -config.keep]:
        old.unlink(missing_ok=True)


def load(config: Config, world: World, model: nn.Module, optimizer: Any) -> int:
    """Resume from the newest snapshot of any node, which each rank receives in memory. Return its step, or 0."""
    newest = max(Path(config.out).glob("step-*.pt"), default=None)
    steps = world.gather(int(newest.stem.removeprefix("step-")) if newest else -1)
    if max(steps) < 0:
        return 0
    source = steps.index(max(steps))
    content = world.broadcast(newest.read_bytes() if newest and world.rank == source else b"", source)
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    with world.fail_together():
        for name in ("batch_size", "seed"):  # they give the steps their meaning
            if (before := state["config"][name]) != getattr(config, name):
                raise ConfigError(f"the snapshots in {config.out} have {name} {before}; use another --out")
    model.load_state_dict(state["model"])
    for saved, group in zip(state["optimizer"]["param_groups"], optimizer.param_groups, strict=True):
        saved |= {key: value for key, value in group.items() if key != "params"}  # the flags of this run count
    optimizer.load_state_dict(state["optimizer"])
    world.print(f"resumed step:{state['step']} from:{config.out} (another --out starts from scratch)")
    return int(state["step"])


@record  # under torchrun, a rank that fails leaves its traceback for torchrun's summary
def main() -> None:
    config = parse(sys.argv[1:])
    with joined(config.device, find(os.environ)) as world:
        world.print(" ".join(["config", *(f"{key}:{value}" for key, value in asdict(config).items())]))
        train(config, world)


if __name__ == "__main__":
    code: Any = 0
    try:
        main()
    except SystemExit as end:  # one rank has said why
        code = end.code
    except (Exception, KeyboardInterrupt):  # noqa: BLE001  shown as Python shows it
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()  # the usual way out waits for loader processes, which ignore signals, and races with gloo
    os._exit(code) if isinstance(code, int) else sys.exit(code)  # which prints a text
