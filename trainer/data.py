"""The samples: where they come from, and how a piece of them gets to the rank's device.

digits.csv.gz is "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), byte for byte as scikit-learn ships it: on each of 1797 lines
64 pixels from 0 to 16, then the digit.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trainer.config import Config, ConfigError
from trainer.sampling import Piece

DIGITS = Path(__file__).with_name("digits.csv.gz")
POOL_BYTES = 128 << 20  # of synthetic images are made, then they repeat
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


def load(config: Config, device: torch.device) -> Data:
    """Raises ConfigError, on one line, when the data are not there or not what was said."""
    if config.data == "synthetic":
        return synthetic(config, device)
    if config.data == "synthetic-tokens":
        return synthetic_tokens(config, device)
    if config.data == "digits":
        return csv(config, device, DIGITS)
    path = Path(config.data_path)
    if config.data != "cifar10" and not path.exists():
        raise ConfigError(f"--data-path {path}: there is no such file or folder")
    if config.data == "csv":
        return csv(config, device, path)
    if config.data == "cifar10":
        from trainer.cifar10 import cifar10

        return cifar10(config, device)
    if config.data == "folder":
        from trainer.folder import folder

        return folder(config, device)
    from trainer.tokens import tokens

    return tokens(config, device)


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


def csv(config: Config, device: torch.device, path: Path) -> Data:
    """A fifth is for testing. Which fifth never changes, so that results can be compared across seeds."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        try:
            rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines if line.strip()])
        except (ValueError, OSError, TypeError) as error:
            raise ConfigError(f"--data-path {path}: not lines of as many numbers each: {error}") from error
    side = math.isqrt(max(0, rows.shape[-1] - 1)) if rows.ndim == 2 else 0
    if side < 1 or side * side != rows.shape[1] - 1:
        raise ConfigError(f"--data-path {path}: a line must be the pixels of a square image, then its label")
    images, labels = rows[:, :-1].reshape(-1, 1, side, side), rows[:, -1].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(rows) // 5], order[len(rows) // 5 :]
    images = (images - images[train].mean()) / images[train].std()
    if config.image_size not in (0, side):
        images = interpolate(images, size=(config.image_size, config.image_size), mode="bilinear")
    if config.model != "digits-cnn":
        images = images.expand(-1, 3, -1, -1)  # torchvision's models are made for colour
    images, labels = images.to(device), labels.to(device)
    shifts = max(1, side // 14) if config.augment else 0
    return Data(
        train=Held(images[train], labels[train], len(train), shifts=shifts),
        test=Held(images[test], labels[test], len(test)),
        classes=int(labels.max()) + 1,
        channels=images.shape[1],
    )


def synthetic(config: Config, device: torch.device) -> Data:
    """Noise and random labels, the same on all ranks. There is nothing to learn: this is for measuring speed."""
    size = config.image_size or 224
    generator = torch.Generator(device).manual_seed(config.seed)

    def make(samples: int) -> Held:
        made = min(samples, max(1, POOL_BYTES // (4 * 3 * size * size)))
        images = torch.randn(made, 3, size, size, device=device, generator=generator)
        labels = torch.randint(config.classes, (made,), device=device, generator=generator)
        return Held(images, labels, samples)

    return Data(make(config.samples), make(max(1, config.samples // 10)), config.classes, channels=3)


def synthetic_tokens(config: Config, device: torch.device) -> Data:
    generator = torch.Generator(device).manual_seed(config.seed)

    def make(samples: int) -> Held:
        made = min(samples, max(1, POOL_BYTES // (8 * config.context)))
        tokens = torch.randint(VOCABULARY, (made, config.context + 1), device=device, generator=generator)
        return Held(tokens[:, :-1], tokens[:, 1:], samples)

    test = make(max(1, config.samples // 10))
    return Data(make(config.samples), test, VOCABULARY, targets=config.context)
