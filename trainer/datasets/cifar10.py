"""CIFAR-10: 60000 colour images of 32x32 in ten classes, downloaded once a node.

The archive is the one "for C programs" of https://www.cs.toronto.edu/~kriz/cifar.html: of each image a byte for the
class, then 3 x 32 x 32 bytes. Set CIFAR10_URL to a mirror where hosts cannot reach the Internet, or lay the archive
into --data-path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tarfile
import urllib.request
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trainer.config import Config, ConfigError
from trainer.data import Data, TensorSplit

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d13530"
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
RECORD = 1 + 3 * 32 * 32
MEAN = (125.3, 123.0, 113.9)  # of the training images, by channel
DEVIATION = (63.0, 62.1, 66.7)
TIMEOUT = 60  # s without a byte


def cifar10(config: Config, device: torch.device) -> Data:
    folder = Path(config.data_path or Path.home() / ".cache/ddp-trainer")
    try:
        archive = fetched(folder)
    except OSError as error:  # an unreachable host is one too
        raise ConfigError(
            f"--data cifar10: {error}; lay {Path(URL).name} into --data-path, or set CIFAR10_URL to a mirror"
        ) from error
    train, test = read(archive, TRAIN, config, device), read(archive, TEST, config, device)
    shifts = 4 if config.augment else 0
    return Data(
        TensorSplit(*train, len(train[0]), MEAN, DEVIATION, shifts, flips=True),
        TensorSplit(*test, len(test[0]), MEAN, DEVIATION),
        classes=10,
        channels=3,
    )


def fetched(folder: Path) -> Path:
    """The archive, whole. Of all processes that want it one downloads it; the others wait, then find it."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / Path(URL).name
    with (folder / f".{archive.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the file is closed, or its owner killed
        if archive.exists():
            return archive
        aside = archive.with_suffix(".part")
        digest = hashlib.md5(usedforsecurity=False)  # what its authors publish
        url = os.environ.get("CIFAR10_URL", URL)
        with urllib.request.urlopen(url, timeout=TIMEOUT) as source, aside.open("wb") as target:  # noqa: S310
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != MD5:
            aside.unlink()
            raise OSError(f"what was downloaded has the MD5 {digest.hexdigest()}, not {MD5}")
        aside.replace(archive)
    return archive


def read(archive: Path, names: tuple[str, ...], config: Config, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images as bytes, labels."""
    with tarfile.open(archive) as members:
        files = [members.extractfile(f"cifar-10-batches-bin/{name}") for name in names]
        content = b"".join(file.read() for file in files if file)
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD).to(device)
    images, labels = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()
    if config.image_size not in (0, 32):
        size = (config.image_size, config.image_size)
        images = torch.cat(
            [interpolate(some.float(), size=size, mode="bilinear").byte() for some in images.split(1000)]
        )
    return images, labels
