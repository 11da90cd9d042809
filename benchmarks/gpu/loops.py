"""Contestants that make the same training steps on one device: the trainer, a bare loop, and a loop like timm's."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trainer.config import Config
from trainer.data import Batch, Data
from trainer.dist import World, autocast
from trainer.loop import Training, setup, train, warm_up
from trainer.metrics import Log
from trainer.model import build, prepare_model
from trainer.optim import make_optimizer

Loss = Callable[[Tensor, Tensor], Tensor]
GIB = 2**30
LOG_EVERY = 50  # steps between two losses that timm's loop reads


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Enough(Exception):
    """The block is over."""


@dataclass(frozen=True)
class Stamped:
    """A split that notes the time when the trainer asks for the batch of its second step, and of the one after `steps`.

    The trainer makes its first batch before the first step, in the pass that warms up DDP.
    """

    split: Any
    steps: int
    device: torch.device
    times: list[float]

    @property
    def size(self) -> int:
        return int(self.split.size)

    def batches(self, micro_batches: Iterable[Any]) -> Iterator[Batch]:
        for number, batch in enumerate(self.split.batches(micro_batches)):
            if number in (1, 1 + self.steps):
                synchronize(self.device)
                self.times.append(time.perf_counter())
            if number == 1 + self.steps:
                raise Enough
            yield batch


class Trainer:
    """The loop of trainer/loop.py with its log, but without snapshots and tests."""

    def __init__(self, config: Config, world: World) -> None:
        self.training: Training = setup(config, world, None)

    def block(self, steps: int) -> float:
        """Seconds of `steps` steps."""
        times: list[float] = []
        training, world = self.training, self.training.world
        stamped = Stamped(training.data.train, steps, world.device, times)
        training = replace(training, data=replace(training.data, train=stamped))
        log = Log(training.config, world, training.data, training.wrapped, None)
        with contextlib.suppress(Enough), contextlib.redirect_stdout(io.StringIO()):
            train(training, log, None, None)
        return times[1] - times[0]

    def first_batch(self) -> Batch:
        training = self.training
        log = Log(training.config, training.world, training.data, training.wrapped, None)
        return next(warm_up(training, log))


class Bare:
    """Forward, backward, clip and update on one batch: no DDP, no log, no data, a constant learning rate."""

    def __init__(
        self,
        config: Config,
        world: World,
        data: Data,
        batch: Batch,
        compile_loss: Callable[[Loss], Loss] = lambda loss: loss,
    ) -> None:
        """`compile_loss` gets a function that computes the loss of a batch: the model and the loss are one graph."""
        torch.manual_seed(config.seed)
        model = prepare_model(build(config.model, data, config.context), config, world.device)
        self.config, self.device = config, world.device
        self.optimizer = make_optimizer(config, model, world.device)
        self.parameters = list(model.parameters())

        def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

        self.loss_of = compile_loss(loss_of)
        self.inputs, self.targets = batch
        if config.channels_last and self.inputs.ndim == 4:
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)

    def block(self, steps: int) -> float:
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        synchronize(self.device)
        return time.perf_counter() - began

    def step(self) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with autocast(self.config.precision, self.device):
            loss = self.loss_of(self.inputs, self.targets)
        loss.backward()
        if self.config.grad_clip:
            nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Timm:
    """timm's model and optimizer, in a loop with the steps of its train.py. Raises ImportError without timm."""

    def __init__(self, config: Config, world: World, batch: Batch, name: str) -> None:
        import timm
        from timm.optim import create_optimizer_v2
        from timm.utils import AverageMeter

        self.device, self.precision = world.device, config.precision
        classes = config.classes
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        self.model = timm.create_model(name, num_classes=classes).to(world.device, memory_format=layout)
        options = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
        self.optimizer = create_optimizer_v2(self.model, opt="sgd", **options)
        if config.compile:
            self.model = torch.compile(self.model)
        self.inputs, self.targets = batch[0].contiguous(memory_format=layout), batch[1]
        self.loss_fn = nn.CrossEntropyLoss().to(world.device)
        self.losses = AverageMeter()

    def block(self, steps: int) -> float:
        self.model.train()
        synchronize(self.device)
        began = time.perf_counter()
        for number in range(steps):
            with autocast(self.precision, self.device):
                loss = self.loss_fn(self.model(self.inputs), self.targets)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if (number + 1) % LOG_EVERY == 0:
                self.losses.update(loss.item(), len(self.inputs))
        synchronize(self.device)
        return time.perf_counter() - began
