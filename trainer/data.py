"""What a data set is, and which samples a step takes. The data sets themselves are in datasets/.

An epoch is a random order of all samples, cut into steps of `batch_size`. Samples that do not fill a last step are left
out, others in each epoch. The samples of a step are dealt to the ranks in turn. All of this is a function of the seed
and the step. So there is no data loader state to save, and a run that resumes in the middle of an epoch takes exactly
the samples that are left, with any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trainer.config import Config, ConfigError

MicroBatch = tuple[int, Tensor]  # a step, and the samples of one micro-batch of this rank

STEPS_AT_ONCE = 1000  # are cut from an epoch: each takes a tensor

VOCABULARY = 50304  # GPT-2's 50257 tokens, rounded up to what matrix units like


class Batch(NamedTuple):
    inputs: Tensor  # (n, channels, height, width), or (n, context) tokens
    targets: Tensor  # (n,), or (n, context)


class Split(Protocol):
    @property
    def size(self) -> int:
        """Samples in an epoch."""

    def batches(self, micro_batches: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield the samples of each micro-batch, on the rank's device."""


@dataclass(frozen=True)
class Data:
    train: Split
    test: Split
    classes: int  # of an image, or of the next token
    channels: int = 0  # 0: these are tokens
    targets: int = 1  # per sample


@dataclass(frozen=True)
class TensorSplit:
    """Samples in the memory of the rank's device. Images of bytes are normalized when they are used."""

    inputs: Tensor
    targets: Tensor
    size: int  # if greater than the number of inputs, they repeat
    mean: tuple[float, ...] = (0.0,)  # of the bytes, by channel
    deviation: tuple[float, ...] = (1.0,)
    shifts: int = 0  # augmentation: move images by up to so many pixels
    flips: bool = False  # and mirror half of them; wrong for digits

    def batches(self, micro_batches: Iterable[MicroBatch]) -> Iterator[Batch]:
        device = self.inputs.device
        for _, samples in micro_batches:
            if device.type == "cuda":
                samples = samples.pin_memory().to(device, non_blocking=True)
            where = samples % len(self.inputs) if self.size > len(self.inputs) else samples
            inputs = self.inputs.index_select(0, where)
            if inputs.dtype == torch.uint8:
                inputs = normalize(inputs, self.mean, self.deviation)
            yield Batch(
                shift_images(inputs, self.shifts, self.flips) if self.shifts else inputs,
                self.targets.index_select(0, where),
            )


def normalize(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    return (images.float() - by_channel(mean, images.device)) / by_channel(deviation, images.device)


@lru_cache
def by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept, because making it in every step takes longer than using it."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def shift_images(images: Tensor, most: int, flips: bool) -> Tensor:
    """Move each image by up to `most` pixels and mirror it, at random. Pixels from beyond the border are 0."""
    count, channels, height, width = images.shape
    device = images.device
    wide = torch.nn.functional.pad(images, (most,) * 4)
    rows = torch.arange(height, device=device) + torch.randint(2 * most + 1, (count, 1), device=device)
    columns = torch.arange(width, device=device).expand(count, -1)
    if flips:
        columns = torch.where(torch.rand(count, 1, device=device) < 0.5, columns, width - 1 - columns)
    columns = columns + torch.randint(2 * most + 1, (count, 1), device=device)
    image = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
    return wide[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


@dataclass(frozen=True)
class Sampling:
    size: int  # samples of an epoch
    batch_size: int  # of all ranks
    seed: int
    rank: int
    world_size: int
    micro_batches: int  # in a step, per rank

    @property
    def steps_per_epoch(self) -> int:
        return self.size // self.batch_size

    def batch(self, step: int) -> Tensor:
        """The samples of all ranks."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return order(self.size, seed_of(self.seed, epoch))[position * self.batch_size :][: self.batch_size]

    def mine(self, step: int) -> Tensor:
        return self.batch(step)[self.rank :: self.world_size]

    def steps(self, first: int, end: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of the steps from `first` to before `end`."""
        while first < end:
            epoch, position = divmod(first, self.steps_per_epoch)
            rest = range(first, min(end, (epoch + 1) * self.steps_per_epoch, first + STEPS_AT_ONCE))
            samples = order(self.size, seed_of(self.seed, epoch))[position * self.batch_size :]
            samples = samples[: len(rest) * self.batch_size].view(len(rest), self.batch_size)
            mine = samples[:, self.rank :: self.world_size].contiguous()
            for step, *micro_batches in zip(
                rest, *(each.unbind() for each in mine.tensor_split(self.micro_batches, dim=1)), strict=True
            ):
                for micro_batch in micro_batches:
                    yield step, micro_batch
            first = rest.stop


@lru_cache(maxsize=1)
def order(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


PADDING = -1  # the step of a micro-batch that does not count


def every_sample(
    size: int, rank: int, world_size: int, at_once: int, equally_often: bool = False
) -> Iterator[MicroBatch]:
    """Deal every sample to exactly one rank, for evaluation. The step is 0.

    `equally_often`: with PADDING, all ranks have the same number of micro-batches.
    """
    rounds = math.ceil(math.ceil(size / world_size) / at_once) if equally_often else 0
    for micro_batch in torch.arange(size)[rank::world_size].split(at_once):
        if len(micro_batch):
            rounds -= 1
            yield 0, micro_batch
    for _ in range(rounds):
        yield PADDING, torch.zeros(1, dtype=torch.int64)


def seed_of(seed: int, number: int) -> int:
    """Mix two numbers into one seed (splitmix64). Torch's CPU generator uses only the low 32 bits of a seed."""
    mixed = ((seed << 32) + number + 1) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return (mixed ^ mixed >> 31) % 2**63


def check_batch_size(config: Config, samples: int, world_size: int) -> None:
    least = world_size * config.grad_accum_steps
    if not least <= config.batch_size <= samples:
        each = f" times {config.grad_accum_steps} micro-batches each" if config.grad_accum_steps > 1 else ""
        raise ConfigError(
            f"--batch-size {config.batch_size} must be at least the number of ranks, {world_size}{each}, "
            f"and at most that of the training samples, {samples}"
        )
