"""Data sets that lie on the device as a whole: the bundled digits, images in a CSV file, and random data.

digits.csv.gz is "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), byte for byte as scikit-learn ships it: on each of 1797 lines
64 pixels from 0 to 16, then the digit.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import torch
from torch.nn.functional import interpolate

from trainer.config import Config, ConfigError
from trainer.data import VOCABULARY, Data, TensorSplit

DIGITS = Path(__file__).parents[1] / "digits.csv.gz"
POOL_BYTES = 128 << 20  # of random images; after that, they repeat


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
        train=TensorSplit(images[train], labels[train], len(train), shifts=shifts),
        test=TensorSplit(images[test], labels[test], len(test)),
        classes=int(labels.max()) + 1,
        channels=images.shape[1],
    )


def synthetic(config: Config, device: torch.device) -> Data:
    """Noise and random labels, the same on all ranks. There is nothing to learn: this is for measuring speed."""
    size = config.image_size or 224
    generator = torch.Generator(device).manual_seed(config.seed)

    def make(samples: int) -> TensorSplit:
        made = min(samples, max(1, POOL_BYTES // (4 * 3 * size * size)))
        images = torch.randn(made, 3, size, size, device=device, generator=generator)
        labels = torch.randint(config.classes, (made,), device=device, generator=generator)
        return TensorSplit(images, labels, samples)

    return Data(make(config.samples), make(max(1, config.samples // 10)), config.classes, channels=3)


def synthetic_tokens(config: Config, device: torch.device) -> Data:
    generator = torch.Generator(device).manual_seed(config.seed)

    def make(samples: int) -> TensorSplit:
        made = min(samples, max(1, POOL_BYTES // (8 * config.context)))
        tokens = torch.randint(VOCABULARY, (made, config.context + 1), device=device, generator=generator)
        return TensorSplit(tokens[:, :-1], tokens[:, 1:], samples)

    test = make(max(1, config.samples // 10))
    return Data(make(config.samples), test, VOCABULARY, targets=config.context)
