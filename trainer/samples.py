"""Samples on the rank's device: what a data set is, and the one that lies there as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trainer.sampling import Piece

VOCABULARY = 50304  # GPT-2's 50257 tokens, rounded up to what matrix units like


class Batch(NamedTuple):
    inputs: Tensor  # (n, channels, height, width), or (n, context) tokens
    targets: Tensor  # (n,), or (n, context)


class Split(Protocol):
    @property
    def size(self) -> int:
        """Samples in an epoch."""

    def batches(self, pieces: Iterable[Piece]) -> Iterator[Batch]:
        """For each piece its samples, on the rank's device."""


@dataclass(frozen=True)
class Data:
    train: Split
    test: Split
    classes: int  # of an image, or of the next token
    channels: int = 0  # 0: these are tokens
    targets: int = 1  # per sample


@dataclass(frozen=True)
class Held:
    """Samples that lie on the rank's device. Images of bytes become numbers around 0 when they are asked for."""

    inputs: Tensor
    targets: Tensor
    size: int  # where these are more than there are, they repeat
    mean: tuple[float, ...] = (0.0,)  # of the bytes, by channel
    deviation: tuple[float, ...] = (1.0,)
    shifts: int = 0  # images are moved by as many pixels, at random
    flips: bool = False  # and mirrored, by chance; a digit must not be

    def batches(self, pieces: Iterable[Piece]) -> Iterator[Batch]:
        device = self.inputs.device
        for _, samples in pieces:
            if device.type == "cuda":
                samples = samples.pin_memory().to(device, non_blocking=True)
            where = samples % len(self.inputs) if self.size > len(self.inputs) else samples
            inputs = self.inputs.index_select(0, where)
            if inputs.dtype == torch.uint8:
                inputs = normalised(inputs, self.mean, self.deviation)
            yield Batch(
                moved(inputs, self.shifts, self.flips) if self.shifts else inputs, self.targets.index_select(0, where)
            )


def normalised(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    by_channel = (1, -1, 1, 1)
    means = torch.tensor(mean).view(by_channel).to(images.device, non_blocking=True)
    deviations = torch.tensor(deviation).view(by_channel).to(images.device, non_blocking=True)
    return (images.float() - means) / deviations


def moved(images: Tensor, most: int, flips: bool) -> Tensor:
    """Each image moved by up to `most` pixels, and mirrored, by chance; what comes in at the border is 0."""
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
