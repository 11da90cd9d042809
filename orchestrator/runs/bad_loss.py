"""Notice a loss that is not finite in the lines of a run that somebody follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..node.serve.figures import figures, may_have_figures
from ..output.lines import Line
from ..output.pipeline import Stage

_BAD = ("nan", "inf")


class BadLoss(Stage):
    """Remembers where the loss of each rank ceased to be finite, until it is again."""

    def __init__(self) -> None:
        self._first: dict[int, Line] = {}  # by rank

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for line in lines:
            if line.rank is not None and (self._first or _may_be_bad(line.text)):
                self._judge(line.rank, line)
        return lines

    def describe(self) -> str:
        """What to say at the end of the run; "" if all losses were finite."""
        if not self._first:
            return ""
        line = min(self._first.values(), key=lambda line: line.at)
        return f"the loss is not finite since this line of rank {line.rank} on {line.host}: {line.text.strip()[:200]}"

    def _judge(self, rank: int, line: Line) -> None:
        loss = figures(line.text).get("loss")
        if loss is not None and math.isfinite(loss):
            self._first.pop(rank, None)
        elif loss is not None:
            self._first.setdefault(rank, line)


def _may_be_bad(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _BAD) and may_have_figures(text)
