"""Images on disk, a folder a class, as ImageNet is laid out. Processes of their own read and decode them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

from trainer.config import Config, ConfigError
from trainer.data import Batch, Data, MicroBatch, normalize, seed_of
from trainer.datasets.workers import load_in_workers
from trainer.extras.mixing import import_transforms

MEAN = (123.7, 116.3, 103.5)  # of ImageNet, by channel
DEVIATION = (58.4, 57.1, 57.4)
ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
MARGIN = 256 / 224  # a test image is shrunk to so much more than its middle that is looked at


def folder(config: Config, device: torch.device) -> Data:
    try:
        import PIL.Image  # noqa: F401  # not at the top: the other data do without it
    except ImportError as error:
        raise ConfigError("--data folder needs Pillow: pip install pillow") from error
    root, size = Path(config.data_path), config.image_size or 224
    classes = sorted(each.name for each in root.glob("train/*") if each.is_dir())
    if not classes:
        raise ConfigError(f"--data-path {root}: there is no folder train/CLASS in it")
    train = listed(root / "train", classes)
    test = listed(root / "val", classes)
    if config.randaugment:
        import_transforms("--randaugment")  # here, where a missing package is one line, and not in each worker
    return Data(
        Files(tuple(train), size, config.workers, device, config.seed, config.augment, config.randaugment),
        Files(tuple(test), size, config.workers, device, config.seed),
        classes=len(classes),
        channels=3,
    )


def listed(part: Path, classes: list[str]) -> list[tuple[str, int]]:
    found = [
        (str(path), number)
        for number, name in enumerate(classes)
        for path in sorted((part / name).glob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if not found:
        raise ConfigError(f"--data-path: there is no image in {part}/CLASS, the classes being those of train")
    return found


@dataclass(frozen=True)
class Files:
    files: tuple[tuple[str, int], ...]  # path, class
    image_size: int
    workers: int
    device: torch.device
    seed: int
    augment: bool = False
    randaugment: bool = False

    @property
    def size(self) -> int:
        return len(self.files)

    def batches(self, micro_batches: Iterable[MicroBatch]) -> Iterator[Batch]:
        for images, labels in load_in_workers(Decoded(self), micro_batches, self.workers, self.device):
            yield Batch(normalize(images, MEAN, DEVIATION), labels)


class Decoded(Dataset[Batch]):
    """What a worker does: from the numbers of a micro-batch to its images, as bytes."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._randaugment = import_transforms("--randaugment").RandAugment() if files.randaugment else None

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        step, samples = micro_batch
        files = self._files
        images = torch.empty(len(samples), 3, files.image_size, files.image_size, dtype=torch.uint8)
        labels = torch.empty(len(samples), dtype=torch.int64)
        for place, sample in enumerate(samples.tolist()):
            path, labels[place] = files.files[sample]
            # the same in a resumed run, whichever process and rank reads it
            seed = seed_of(files.seed, step) * files.size + sample
            image = decoded(path, files.image_size, random.Random(seed) if files.augment else None)  # noqa: S311
            if self._randaugment:
                with torch.random.fork_rng(devices=[]):  # without workers, this is the process that trains
                    torch.default_generator.manual_seed(seed % 2**63)
                    image = self._randaugment(image)
            images[place] = image
        return Batch(images, labels)


def decoded(path: str, size: int, chance: random.Random | None) -> torch.Tensor:
    """(3, size, size) bytes: with `chance` a random part, mirrored or not; else the middle."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.draft("RGB", (size, size))  # a JPEG is decoded at the half, quarter or eighth that is large enough
            box = random_box(image.width, image.height, chance) if chance else middle_box(image.width, image.height)
            small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
            if chance and chance.random() < 0.5:
                small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    except (OSError, UnidentifiedImageError) as error:
        raise RuntimeError(f"{path}: not an image that can be read: {error}") from error
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1)


def random_box(width: int, height: int, chance: random.Random) -> tuple[float, float, float, float]:
    """A part of 8 to 100 % of the area, its sides as 3:4 to 4:3, as Inception was trained and all since."""
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = chance.uniform(0, width - wide), chance.uniform(0, height - high)
            return left, top, left + wide, top + high
    return middle_box(width, height)


def middle_box(width: int, height: int) -> tuple[float, float, float, float]:
    side = min(width, height) / MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
