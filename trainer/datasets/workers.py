"""Load micro-batches in processes that run ahead of the training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from trainer.data import Batch, MicroBatch
from trainer.dist import ignore_signals

AHEAD = 4  # micro-batches that each process has ready


def load_in_workers(
    dataset: Dataset[Batch], micro_batches: Iterable[MicroBatch], workers: int, device: torch.device
) -> Iterator[Batch]:
    """`dataset[micro_batch]` for each micro-batch, in order, on `device`.

    One set of processes for all of them: they run ahead across the ends of epochs too.
    """
    cuda = device.type == "cuda"
    options: dict[str, Any] = {"prefetch_factor": AHEAD, "worker_init_fn": ignore_signals} if workers else {}
    loader: DataLoader[Batch] = DataLoader(
        dataset,
        sampler=micro_batches,  # any iterable will do
        batch_size=None,  # an item is a micro-batch already
        num_workers=workers,
        pin_memory=cuda,
        generator=torch.Generator(),  # the loader draws a seed, which must not come from the training's generator
        **options,
    )
    for inputs, targets in loader:
        yield Batch(inputs.to(device, non_blocking=cuda), targets.to(device, non_blocking=cuda))
