"""Pass the lines of a run through a chain of stages. Does not read the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .lines import Line


class Stage:
    """Takes lines and gives lines: the same ones, changed ones, or earlier ones that it has held.

    `now` is in seconds of a monotonic clock, the same for all stages. This base class gives the lines unchanged.
    """

    @property
    def wake_at(self) -> float:
        """When to call `push` again, even without new lines."""
        return math.inf

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        return lines

    def flush(self, now: float) -> Sequence[Line]:
        """At the end: the lines that are still held."""
        return ()


class Sink(Stage):
    """The end of a chain: calls a function with each batch of lines, even an empty one."""

    def __init__(self, take: Callable[[Sequence[Line]], object]) -> None:
        self._take = take

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        self._take(lines)
        return ()


class Pipeline(Stage):
    """Several stages in a row, as one stage."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)

    @property
    def wake_at(self) -> float:
        return min(stage.wake_at for stage in self._stages)

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        return self._push(0, lines, now)

    def flush(self, now: float) -> Sequence[Line]:
        lines: list[Line] = []
        for number, stage in enumerate(self._stages, 1):
            lines += self._push(number, stage.flush(now), now)
        return lines

    def _push(self, first: int, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for stage in self._stages[first:]:
            lines = stage.push(lines, now)
        return lines
