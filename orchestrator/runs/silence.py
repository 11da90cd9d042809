"""Tell who follows a run that its ranks have ceased to print, which is the only sign of a hung collective."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from ..inventory.advice import AboutRun
from ..output.lines import Line
from ..output.pipeline import Stage
from .status_line import ATTEMPT, ENDS, READY, STOPS, WAITS

PATIENCE = 120.0  # s
_PAUSES = re.compile("|".join(pattern.pattern for pattern in (ATTEMPT, STOPS, WAITS, ENDS)))


class Silence(Stage):
    """Calls `note` once in each silence of all ranks, if all of them have printed in this attempt before.

    Not for a server, which prints nothing while nobody asks. Of a script that is often silent, only longer silences
    are told.
    """

    def __init__(
        self, ranks: int, about: AboutRun, note: Callable[[str], None], is_cut_off: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_cut_off`: whether lines may be missing because a connection is broken."""
        self._ranks = ranks
        self._about = about
        self._note = note
        self._is_cut_off = is_cut_off
        self._attempt = 0
        self._heard: set[int] = set()
        self._heard_at = 0.0
        self._patience = PATIENCE
        self._is_told = self._is_server = False

    @property
    def wake_at(self) -> float:
        is_over = self._is_told or self._is_server or len(self._heard) < self._ranks
        return math.inf if is_over else self._heard_at + self._patience

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for line in lines:
            if line.rank is None:
                if _PAUSES.match(line.text):
                    self._heard = set()
            elif line.attempt >= self._attempt:
                self._hear(line.attempt, line.rank, now)
                self._is_server = self._is_server or READY.match(line.text) is not None
        if self._heard and self._is_cut_off():
            self._heard_at = now
        if now >= self.wake_at:
            self._is_told = True
            self._note(
                f"no rank has printed a line for {(now - self._heard_at) / 60:.0f} min. `{self._about.command('top')}` "
                f"shows when each did; `{self._about.command('diagnose')}` tells whether one has failed"
            )
        return lines

    def _hear(self, attempt: int, rank: int, now: float) -> None:
        if attempt > self._attempt:
            self._attempt, self._heard = attempt, set()
        if self._is_told and self._heard:
            self._patience = max(self._patience, 2 * (now - self._heard_at))
        self._is_told = False
        self._heard.add(rank)
        self._heard_at = now
