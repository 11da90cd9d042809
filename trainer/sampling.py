"""Which samples a step takes, and which of them this rank. A function of the seed and the step: nothing to save.

An epoch is a random order of all samples, cut into steps of `batch_size`. What is left over fills no step and is left
out: other samples each epoch. A step's samples go round the ranks like cards. So a run that goes on, in the middle of
an epoch and with any number of ranks, takes exactly the samples that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

Piece = tuple[int, Tensor]  # the step, and the samples of this rank that go through the model at once


@dataclass(frozen=True)
class Sampling:
    size: int  # samples of an epoch
    batch_size: int  # of all ranks
    seed: int
    rank: int
    world_size: int
    pieces: int  # into which a rank's part of a step is cut

    @property
    def steps_per_epoch(self) -> int:
        return self.size // self.batch_size

    def batch(self, step: int) -> Tensor:
        """The samples of all ranks."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return order(self.size, seed_of(self.seed, epoch))[position * self.batch_size :][: self.batch_size]

    def mine(self, step: int) -> Tensor:
        return self.batch(step)[self.rank :: self.world_size]

    def steps(self, first: int, end: int) -> Iterator[Piece]:
        """All pieces of the steps from `first` to before `end`. An epoch is cut at once: step by step is felt."""
        while first < end:
            epoch, position = divmod(first, self.steps_per_epoch)
            rest = range(first, min(end, (epoch + 1) * self.steps_per_epoch))
            samples = order(self.size, seed_of(self.seed, epoch))[position * self.batch_size :]
            samples = samples[: len(rest) * self.batch_size].view(len(rest), self.batch_size)
            mine = samples[:, self.rank :: self.world_size].contiguous()
            for step, *pieces in zip(
                rest, *(each.unbind() for each in mine.tensor_split(self.pieces, dim=1)), strict=True
            ):
                for piece in pieces:
                    yield step, piece
            first = rest.stop


@lru_cache(maxsize=1)
def order(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def everything(size: int, rank: int, world_size: int, at_once: int) -> Iterator[Piece]:
    """Every sample on exactly one rank, for tests of the model. No step, which 0 stands for."""
    for piece in torch.arange(size)[rank::world_size].split(at_once):
        if len(piece):
            yield 0, piece


def seed_of(seed: int, number: int) -> int:
    """One seed of two numbers, well mixed (splitmix64): of a seed torch's generator on a CPU takes the low 32 bits."""
    mixed = ((seed << 32) + number + 1) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return (mixed ^ mixed >> 31) % 2**63
