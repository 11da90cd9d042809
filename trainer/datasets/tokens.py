"""Text as tokens: files that are mapped into memory and read where needed, so they may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.config import Config, ConfigError
from trainer.data import VOCABULARY, Batch, Data, MicroBatch

# The shards of FineWeb for modded-nanoGPT and llm.c begin with 256 integers of 32 bits; this is the first.
SHARD_MAGIC, SHARD_HEADER = 20240520, 512  # the header's length in tokens


@dataclass(frozen=True)
class Windows:
    """A sample is `context` tokens, and its targets are the tokens that follow each. Samples do not cross shards."""

    shards: tuple[Tensor, ...]  # mapped from files
    context: int
    classes: int
    device: torch.device

    @property
    def counts(self) -> list[int]:
        return [max(0, len(shard) - 1) // self.context for shard in self.shards]

    @property
    def size(self) -> int:
        return sum(self.counts)

    def batches(self, micro_batches: Iterable[MicroBatch]) -> Iterator[Batch]:
        ends = torch.tensor(self.counts).cumsum(0)
        window = torch.arange(self.context + 1)
        for _, samples in micro_batches:
            shard_of = torch.bucketize(samples, ends, right=True)
            tokens = torch.empty(len(samples), self.context + 1, dtype=torch.int64)
            for number in shard_of.unique().tolist():
                chosen = shard_of == number
                shard, first = self.shards[number], int(ends[number]) - self.counts[number]
                tokens[chosen] = shard[(samples[chosen] - first).unsqueeze(1) * self.context + window].long()
            if self.shards[0].dtype == torch.int16:
                tokens &= 0xFFFF  # torch can do little with unsigned numbers of 16 bits
            if tokens.numel() and int(tokens.max()) >= self.classes:
                raise ValueError(f"token {int(tokens.max())} is beyond the vocabulary of {self.classes}")
            if self.device.type == "cuda":
                tokens = tokens.pin_memory().to(self.device, non_blocking=True)
            yield Batch(tokens[:, :-1], tokens[:, 1:])


def tokens(config: Config, device: torch.device) -> Data:
    """A folder has files named *train* and *val*, one or many. Of a single file, the last tenth is for testing."""
    text, path = config.data == "text", Path(config.data_path)
    classes = 256 if text else VOCABULARY
    if path.is_dir():
        train, test = (find_shards(path, part, text) for part in ("train", "val"))
    else:
        whole = map_file(path, text)
        cut = len(whole) * 9 // 10
        train, test = (whole[:cut],), (whole[cut:],)
    splits = [Windows(shards, config.context, classes, device) for shards in (train, test)]
    for split, name in zip(splits, ("training", "testing"), strict=True):
        if not split.size:
            count = sum(map(len, split.shards))
            raise ConfigError(f"--data-path {path}: {count} tokens for {name} are fewer than --context + 1")
    return Data(splits[0], splits[1], classes, targets=config.context)


def find_shards(folder: Path, part: str, text: bool) -> tuple[Tensor, ...]:
    pattern = f"*{part}*.{'txt' if text else 'bin'}"
    files = sorted(folder.glob(pattern))
    if not files:
        raise ConfigError(f"--data-path {folder}: there is no file {pattern} in it")
    return tuple(map_file(file, text) for file in files)


def map_file(path: Path, text: bool) -> Tensor:
    dtype = torch.uint8 if text else torch.int16
    count = path.stat().st_size // dtype.itemsize
    if not count:
        return torch.empty(0, dtype=dtype)
    mapped = torch.from_file(str(path), shared=False, size=count, dtype=dtype)
    if not text and count >= SHARD_HEADER and mapped[:2].view(torch.int32).item() == SHARD_MAGIC:
        return mapped[SHARD_HEADER:]
    return mapped
