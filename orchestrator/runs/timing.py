"""How long each phase of a launch takes, for `up --timing`. Reads no clock but the one that it is given."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from ..node.serve.figures import figures, may_have_figures
from ..output.lines import Line
from ..output.pipeline import Stage

FIRST_LINE, FIRST_STEP = "first line", "first step"
MAX_LINES = 10_000  # lines of ranks that are searched for a step; many scripts print none


class Timing:
    """The phases, in the order in which they begin. Hosts do most of them at the same time: the slowest one counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A launch begins. `up --wait` may begin several."""
        self._began = self._clock()
        self._phases: dict[str, dict[str, float]] = {}  # seconds by host or rank

    def connected(self, host: str) -> None:
        self._phases.setdefault("connect", {})[host] = self._clock() - self._began

    @contextlib.contextmanager
    def measure(self, phase: str, host: str) -> Iterator[None]:
        began = self._clock()
        yield
        self._phases.setdefault(phase, {})[host] = self._clock() - began

    def started(self) -> None:
        """The run is committed: its ranks start now."""
        self._started = self._clock()

    def printed(self, rank: int, host: str) -> None:
        """A rank has printed its first line."""
        self._phases.setdefault(FIRST_LINE, {})[f"rank {rank} on {host}"] = self._clock() - self._started

    def stepped(self) -> None:
        """A rank has printed the number of a step for the first time."""
        self._phases[FIRST_STEP] = {"": self.since_start()}

    def slowest(self) -> dict[str, tuple[str, float]]:
        """Of each phase, the host or rank that took longest, and its seconds."""
        return {phase: max(taken.items(), key=lambda item: item[1]) for phase, taken in self._phases.items()}

    def summarize(self, *phases: str) -> str:
        """How long the slowest host took for each of these phases, if any did: `connect 0.4 s, check 0.2 s`."""
        slowest = self.slowest()
        return ", ".join(f"{phase} {slowest[phase][1]:.1f} s" for phase in phases if phase in slowest)

    @property
    def until_start(self) -> float:
        """Seconds from the beginning of the launch until the run was committed."""
        return self._started - self._began

    def since_start(self) -> float:
        """Seconds since the run was committed."""
        return self._clock() - self._started

    def describe(self) -> str:
        parts = [
            f"{phase} {seconds:.1f} s" + (f" ({name})" if len(self._phases[phase]) > 1 else "")
            for phase, (name, seconds) in self.slowest().items()
        ]
        return f"timing: {', '.join(parts)}; {self._clock() - self._began:.1f} s in total"


class FirstLine(Stage):
    """Report how long the first rank took to print a line, and a step."""

    def __init__(self, timing: Timing, report: Callable[[str], None]) -> None:
        self._timing = timing
        self._report = report
        self._is_reported = False
        self._left = MAX_LINES  # to search for a step; 0: one was found

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if self._left:
            of_ranks = [line.text for line in lines if line.rank is not None]
            if of_ranks and not self._is_reported:
                self._is_reported = True
                self._report(f"first line of a rank after {self._timing.since_start():.1f} s")
            if any(_has_step(text) for text in of_ranks[: self._left]):
                self._timing.stepped()
                self._report(f"first step after {self._timing.since_start():.1f} s")
                self._left = 0
            self._left = max(0, self._left - len(of_ranks))
        return lines


def _has_step(text: str) -> bool:
    return may_have_figures(text) and "step" in figures(text)


class FirstLines(Stage):
    """Report the timing once: when each rank has printed a line, or at the end of the run."""

    def __init__(self, timing: Timing, ranks: int, report: Callable[[str], None]) -> None:
        self._timing = timing
        self._missing = ranks
        self._report = report
        self._seen: set[int] = set()

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for line in lines:
            if self._missing and line.rank is not None and line.rank not in self._seen:
                self._seen.add(line.rank)
                self._timing.printed(line.rank, line.host)
                self._missing -= 1
                if not self._missing:
                    self._report(self._timing.describe())
        return lines

    def flush(self, now: float) -> Sequence[Line]:
        if self._missing:
            self._report(f"{self._timing.describe()}; no line from {self._missing} of the ranks")
            self._missing = 0
        return ()
