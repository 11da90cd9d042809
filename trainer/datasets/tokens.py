"""Text as tokens: a file that is mapped into memory and read where it is needed, so it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.config import Config, ConfigError
from trainer.data import VOCABULARY, Batch, Data, MicroBatch


@dataclass(frozen=True)
class Windows:
    """Sample i is the `context` tokens from i * context on; what has to be said of each is the token after it."""

    tokens: Tensor  # in memory mapped from the file
    context: int
    classes: int
    device: torch.device

    @property
    def size(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def batches(self, micro_batches: Iterable[MicroBatch]) -> Iterator[Batch]:
        for _, samples in micro_batches:
            where = samples.unsqueeze(1) * self.context + torch.arange(self.context + 1)
            tokens = self.tokens[where].long()
            if self.tokens.dtype == torch.int16:
                tokens = tokens & 0xFFFF  # torch can do little with unsigned numbers of 16 bits
            if tokens.numel() and int(tokens.max()) >= self.classes:
                raise ValueError(f"token {int(tokens.max())} is beyond the vocabulary of {self.classes}")
            if self.device.type == "cuda":
                tokens = tokens.pin_memory().to(self.device, non_blocking=True)
            yield Batch(tokens[:, :-1], tokens[:, 1:])


def tokens(config: Config, device: torch.device) -> Data:
    """A folder has train.bin and val.bin. Of a single file, the last tenth is for testing."""
    text, path = config.data == "text", Path(config.data_path)
    classes = 256 if text else VOCABULARY
    if path.is_dir():
        train, test = (mapped(path / f"{name}.{'txt' if text else 'bin'}", text) for name in ("train", "val"))
    else:
        whole = mapped(path, text)
        cut = len(whole) * 9 // 10
        train, test = whole[:cut], whole[cut:]
    for part, name in ((train, "training"), (test, "testing")):
        if len(part) <= config.context:
            raise ConfigError(f"--data-path {path}: {len(part)} tokens for {name} are less than --context + 1")
    parts = [Windows(part, config.context, classes, device) for part in (train, test)]
    return Data(parts[0], parts[1], classes, targets=config.context)


def mapped(path: Path, text: bool) -> Tensor:
    if not path.is_file():
        raise ConfigError(f"--data-path: {path} is not a file")
    kind = torch.uint8 if text else torch.int16
    count = path.stat().st_size // kind.itemsize
    return torch.from_file(str(path), shared=False, size=count, dtype=kind) if count else torch.empty(0, dtype=kind)
