"""What our own scripts print on hosts, each as a line of JSON: `setup`, the benchmark and the deep check. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class FoundPython:
    """A python, as `setup` looks at it."""

    executable: str
    python: tuple[int, ...]
    torch: str | None
    """Its version."""
    venv: bool
    """Whether it can make a virtual environment."""
    home: str


@dataclass(frozen=True)
class StepSeconds:
    """Of a step of the benchmark: parts of it alone, and all together."""

    compute: float
    allreduce: float
    data: float
    together: float


@dataclass(frozen=True)
class Together:
    together: float


@dataclass(frozen=True)
class BenchResult:
    """`python -m trainer --bench`"""

    world_size: int
    batch_size: int
    limit: Annotated[str, re.compile(r"[a-z]{1,20}").fullmatch]
    samples_per_second: Together
    seconds_per_step: StepSeconds


@dataclass(frozen=True)
class AllReduce:
    """The sum of a tensor over all ranks, as one rank saw it."""

    rank: int
    what: Literal["all_reduce"]
    backend: str
    bytes: int
    seconds: float
    right: bool


@dataclass(frozen=True)
class Product:
    """A matrix product on one rank."""

    rank: int
    what: Literal["product"]
    device: str
    tflops: float


@dataclass(frozen=True)
class DeepFigure:
    """A line of the deep check."""

    figure: AllReduce | Product
