"""The images: read or made once, kept on the rank's device, addressed by index. Never downloads anything.

digits.csv.gz is "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), byte for byte as scikit-learn ships it: on each of 1797 lines
64 pixels from 0 to 16, then the digit.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trainer.config import Config

DIGITS = Path(__file__).with_name("digits.csv.gz")
POOL_BYTES = 128 << 20  # of synthetic images are made, then they repeat


@dataclass(frozen=True)
class Split:
    images: Tensor  # (n, channels, height, width)
    labels: Tensor  # (n,)
    size: int  # images in an epoch; where these are more than n, they repeat

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        where = indices.to(self.images.device) % len(self.images)
        return self.images[where], self.labels[where]


@dataclass(frozen=True)
class Data:
    train: Split
    test: Split
    classes: int

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]


def load(config: Config, device: torch.device) -> Data:
    return load_digits(config, device) if config.data == "digits" else make_synthetic(config, device)


def load_digits(config: Config, device: torch.device) -> Data:
    """A fifth is for testing. Which fifth never changes, so that results can be compared across seeds."""
    with gzip.open(DIGITS, "rt") as lines:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in lines], device=device)
    images = (rows[:, :64].reshape(-1, 1, 8, 8) / 16 - 0.305) / 0.376  # mean 0, deviation 1
    labels = rows[:, 64]
    if config.image_size not in (0, 8):
        images = interpolate(images, size=(config.image_size, config.image_size), mode="bilinear")
    if config.model != "digits-cnn":
        images = images.expand(-1, 3, -1, -1)  # torchvision's models are made for colour
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(device)
    test, train = order[: len(rows) // 5], order[len(rows) // 5 :]
    return Data(
        train=Split(images[train], labels[train], len(train)),
        test=Split(images[test], labels[test], len(test)),
        classes=10,
    )


def make_synthetic(config: Config, device: torch.device) -> Data:
    """Noise and random labels, the same on all ranks. There is nothing to learn: this is for measuring speed."""
    size = config.image_size or 224
    generator = torch.Generator(device).manual_seed(config.seed)

    def make(samples: int) -> Split:
        made = min(samples, max(1, POOL_BYTES // (4 * 3 * size * size)))
        images = torch.randn(made, 3, size, size, device=device, generator=generator)
        labels = torch.randint(config.classes, (made,), device=device, generator=generator)
        return Split(images, labels, samples)

    return Data(train=make(config.samples), test=make(max(1, config.samples // 10)), classes=config.classes)
