"""Show few states of a progress bar: a bar of each rank would bury all other lines. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .lines import Line
from .pipeline import Stage


class BarFilter(Stage):
    """Keeps back the states of a bar, except the newest one when its stream goes on with another line or ends.

    The streams of an attempt have ended on a host that sends a line of a later one.
    """

    def __init__(self, interval: float = math.inf) -> None:
        """`interval`: a state may pass when this many seconds have passed since the one before."""
        self._interval = interval
        self._held: dict[tuple[str, int | None, str, int], Line] = {}
        self._passed_at: dict[tuple[str, int | None, str, int], float] = {}
        self._newest: dict[str, int] = {}  # attempt of each host

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if not self._held and not any(line.redrawn for line in lines):
            return lines
        passing: list[Line] = []
        for line in lines:
            if line.attempt > self._newest.get(line.host, 0):
                self._newest[line.host] = line.attempt
                passing += self._release_earlier(line)
            stream = (line.host, line.rank, line.stream, line.attempt)
            if line.redrawn == "state" and line.at < self._passed_at.setdefault(stream, line.at) + self._interval:
                self._held[stream] = line
                continue
            held = self._held.pop(stream, None)
            if line.redrawn:
                self._passed_at[stream] = line.at
            elif held is not None:  # the bar has ended without a last state of its own
                passing.append(held)
            passing.append(line)
        return passing

    def _release_earlier(self, line: Line) -> list[Line]:
        ended = [stream for stream in self._held if stream[0] == line.host and stream[3] < line.attempt]
        return [self._held.pop(stream) for stream in ended]

    def flush(self, now: float) -> Sequence[Line]:
        held, self._held = tuple(self._held.values()), {}
        return held
