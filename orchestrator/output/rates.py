"""Tell the rates of single ranks from a rate of all ranks together, which each of them prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection


class Rates:
    """What the rates of a run have shown: of single ranks, they differ at some step, and are equal by chance only."""

    def __init__(self) -> None:
        self._differ = self._alike = False

    def total(self, newest: Collection[tuple[float | None, float]]) -> tuple[float, bool]:
        """The rate of all ranks, and whether each rank prints it.

        `newest`: the step and the rate that each rank has printed last; at least one. A step may be unknown.
        """
        at_step: dict[float, list[float]] = defaultdict(list)
        for step, rate in newest:
            if step is not None:
                at_step[step].append(rate)
        for rates in at_step.values():
            if len(rates) > 1:
                self._differ |= len(set(rates)) > 1
                self._alike |= len(set(rates)) == 1
        values = [rate for _, rate in newest]
        if len(values) > 1 and not self._differ and (self._alike or len(set(values)) == 1):
            return (at_step[max(at_step)] if at_step else values)[0], True
        return sum(values), False
