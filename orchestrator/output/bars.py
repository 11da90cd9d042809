"""Show few states of a progress bar: a bar of each rank would bury all other lines. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .lines import Line
from .pipeline import Stage

Stream = tuple[str, int | None, str, int]  # host, rank, name, attempt
_TURN = re.compile(r"ddp-orch: (?:the run |first failure|stopping |attempt )")


def is_turn(line: Line) -> bool:
    """Whether ddp-orch says that an attempt begins or ends. What its ranks have printed until then comes before."""
    return line.rank is None and _TURN.match(line.text) is not None


class BarFilter(Stage):
    """Keeps back the states of a bar, except the newest one when its stream goes on with another line or ends.

    The streams of an attempt have ended on a host that sends a line of a later one. The newest states of a host also
    come before a line that says what happens to its ranks (`is_turn`).
    """

    def __init__(self, interval: float = math.inf) -> None:
        """`interval`: a state may pass when this many seconds have passed since the one before."""
        self._interval = interval
        self._held: dict[Stream, Line] = {}
        self._passed_at: dict[Stream, float] = {}
        self._newest: dict[str, int] = {}  # attempt of each host

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if not self._held and not any(line.redrawn for line in lines):
            return lines
        passing: list[Line] = []
        for line in lines:
            if line.attempt > self._newest.get(line.host, 0):
                self._newest[line.host] = line.attempt
                passing += self._release(line.host, line.attempt)
            if self._held and is_turn(line):
                passing += self._release(line.host, math.inf)
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

    def _release(self, host: str, before: float) -> list[Line]:
        """What is held of the attempts of a host before this one."""
        ended = [stream for stream in self._held if stream[0] == host and stream[3] < before]
        return [self._held.pop(stream) for stream in ended]

    def flush(self, now: float) -> Sequence[Line]:
        held, self._held = tuple(self._held.values()), {}
        return held
