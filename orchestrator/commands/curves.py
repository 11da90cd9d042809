"""The curves of `top`: what its samples have shown so far. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from .board_rows import BoardRow, figures_of, losses_of, number

POINTS = 400  # of a curve; the oldest are dropped
MIN_WIDTH = 8  # characters of a curve

_BLOCKS = "▁▂▃▄▅▆▇█"


class History:
    """The figures of all ranks together, from sample to sample."""

    def __init__(self) -> None:
        self._points: dict[str, deque[float]] = {name: deque(maxlen=POINTS) for name in ("loss", "rate", "GPU %")}

    def add(self, rows: Sequence[BoardRow]) -> None:
        """Add the newest samples of all hosts."""
        ranks = [rank for row in rows for rank in row.ranks]
        self._add("loss", _mean(losses_of(ranks)))
        rates = figures_of(ranks, "rate")
        # equal rates may be one rate of all ranks together, which each rank prints
        self._add("rate", None if not rates else rates[0] if len(set(rates)) == 1 else sum(rates))
        self._add("GPU %", _mean(gpu.busy for row in rows if row.now for gpu in row.now.gpus if gpu.busy is not None))

    def curves(self, width: int) -> str:
        """`loss ▇▅▃▂ 0.12   GPU % ▇▇█▇ 97` in at most `width` characters; empty with fewer than two samples."""
        points = {name: values for name, values in self._points.items() if len(values) > 1}
        if not points:
            return ""
        ends = {name: number(round(values[-1]) if name == "GPU %" else values[-1]) for name, values in points.items()}
        texts = sum(len(name) + len(ends[name]) + 5 for name in points) - 3
        room = (width - texts) // len(points)
        if room < MIN_WIDTH:
            return "   ".join(f"{name} {end}" for name, end in ends.items())[:width]
        return "   ".join(
            f"{name} {sparkline(list(values)[-room:], 100.0 if name == 'GPU %' else None)} {ends[name]}"
            for name, values in points.items()
        )

    def _add(self, name: str, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._points[name].append(value)


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """A block per value. `top`: the scale is from 0 to this; None: from the lowest to the highest value."""
    low, high = (min(values), max(values)) if top is None else (0.0, top)
    if high <= low:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[max(0, min(7, int((value - low) / (high - low) * 8)))] for value in values)


def _mean(values: Iterable[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
