"""Your own data: --data MODULE:FUNCTION, a function that gets the Config and returns a training and a test dataset.

A dataset has `__len__` and `__getitem__`, which returns an input and its target as tensors, numbers or arrays. The
training dataset has `classes`: how many there are, or the list of their names, as torchvision's datasets have it.

There is no sampler to write and no state to save: trainer/data.py decides which samples a step takes. Before each
sample, `random`, torch and NumPy are seeded from the step and the sample. So a resumed run repeats the random
augmentation in `__getitem__` exactly, with any number of workers and ranks.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from trainer.config import Config, ConfigError
from trainer.data import Batch, Data, MicroBatch, seed_of
from trainer.datasets.workers import load_in_workers


def own(config: Config, device: torch.device) -> Data:
    """Raises ConfigError when the function or what it returns cannot be used."""
    name = config.data
    module, _, function = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--data {name}: {error}") from error
    returned = make(config)
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise ConfigError(f"--data {name} must return a training and a test dataset, not {type(returned).__name__}")
    train, test = returned
    for dataset in (train, test):
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
            raise ConfigError(
                f"--data {name}: {type(dataset).__name__} must have samples, __len__ and __getitem__; "
                "an iterable dataset cannot resume exactly"
            )
    classes = getattr(train, "classes", None)
    if classes is None:
        raise ConfigError(f"--data {name}: set `classes` of {type(train).__name__} to the number of classes or tokens")
    inputs, targets = (torch.as_tensor(each) for each in train[0])
    return Data(
        OwnSplit(train, config.workers, device, config.seed),
        OwnSplit(test, config.workers, device, config.seed),
        classes=classes if isinstance(classes, int) else len(classes),
        channels=inputs.shape[0] if inputs.is_floating_point() and inputs.ndim == 3 else 0,
        targets=targets.numel(),
    )


@dataclass(frozen=True)
class OwnSplit:
    dataset: Any
    workers: int
    device: torch.device
    seed: int

    @property
    def size(self) -> int:
        return len(self.dataset)

    def batches(self, micro_batches: Iterable[MicroBatch]) -> Iterator[Batch]:
        for inputs, targets in load_in_workers(Collated(self), micro_batches, self.workers, self.device):
            yield Batch(inputs, targets)


class Collated(Dataset[Batch]):
    """What a worker does: from the numbers of a micro-batch to its samples."""

    def __init__(self, split: OwnSplit) -> None:
        self._split = split

    def __getitem__(self, micro_batch: MicroBatch) -> Batch:
        step, samples = micro_batch
        seed = seed_of(self._split.seed, step)
        with torch.random.fork_rng(devices=[]):  # without workers, this is the process that trains
            collated = []
            for sample in samples.tolist():
                seed_everything(seed_of(seed % 2**31, sample))
                collated.append(tuple(self._split.dataset[sample]))
        inputs, targets = default_collate(collated)
        return Batch(inputs, targets)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
