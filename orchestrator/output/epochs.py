"""Notice that the steps of ranks begin again in each epoch, as a progress bar does, so that they do not end the run."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LABEL = re.compile(r"\bepoch\W{0,3}\d+\b(?!%)[^|%\n]*?\d+%\|", re.IGNORECASE)  # `Epoch 2/9:  40%|####      | 4/10`


class Epochs:
    """The bars of a run."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, float], float] = {}  # the newest one of each rank, by the last step of its bar
        self._totals: set[float] = set()

    def see(self, rank: int, figures: Mapping[str, float], text: str) -> None:
        """`figures`: of the line `text`."""
        if "step" not in figures or "total" not in figures:
            return
        step, bar = figures["step"], (rank, figures["total"])
        if step < self._steps.get(bar, step) or _LABEL.search(text):
            self._totals.add(figures["total"])
        self._steps[bar] = step

    def restart(self) -> None:
        """A new attempt begins: the steps of its ranks begin again, whatever they count."""
        self._steps = {}

    def has(self, total: float) -> bool:
        """Whether steps up to `total` are those of an epoch."""
        return total in self._totals
