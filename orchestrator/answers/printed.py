"""Lines of JSON that scripts of ddp-orch print on hosts: `setup`, the benchmark and `check --deep`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class FoundPython:
    """A python that `setup` found."""

    executable: str
    """Its path."""
    python: tuple[int, ...]
    """Its version."""
    torch: str | None
    """Version of torch; None: not installed."""
    venv: bool
    """Whether it can create a virtual environment."""
    home: str
    """The home folder of the user."""


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a training step in the benchmark: each part alone, and all together."""

    compute: float
    allreduce: float
    data: float
    together: float


@dataclass(frozen=True)
class Together:
    """Samples per second, with all parts of a step together."""

    together: float


@dataclass(frozen=True)
class BenchResult:
    """The result of `python -m trainer --bench`."""

    world_size: int
    """Number of ranks."""
    batch_size: int
    """Samples per step of all ranks together."""
    limit: Annotated[str, re.compile(r"[a-z]{1,20}").fullmatch]
    """The part of a step that limits the speed."""
    samples_per_second: Together
    seconds_per_step: StepSeconds


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce, as one rank measured it."""

    rank: int
    what: Literal["all_reduce"]
    backend: str
    """`gloo` or `nccl`."""
    bytes: int
    """Size of the tensor."""
    seconds: float
    """The fastest of some repeats."""
    right: bool
    """Whether the sum was correct."""


@dataclass(frozen=True)
class Product:
    """A matrix product, as one rank measured it."""

    rank: int
    what: Literal["product"]
    device: str
    """The name of the GPU, or `cpu`."""
    tflops: float
    """TFLOP/s, the fastest of some repeats."""


@dataclass(frozen=True)
class DeepFigure:
    """A line that `check --deep` prints."""

    figure: AllReduce | Product
