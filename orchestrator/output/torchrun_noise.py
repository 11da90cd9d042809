"""Shorten stack traces of torchrun to one line, and hide how it reacts when ddp-orch stops a run. Pure.

When a run is stopped, and often when it succeeds, torchrun on each host prints 25 lines of Python traceback and 30 of
C++. People take them for the cause. Output of the ranks is never changed, and nothing is lost: `logs --stream agent`,
`--grep`, `--json` and `--output` show every line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from .console import number_of
from .lines import Line
from .pipeline import Stage

MAX_TRACE = 1000  # lines; anything longer is not a stack trace
HOLD = 3.0  # s to wait for the line of the head that ddp-orch stops the run; other hosts may react before it
_PREFIX = re.compile(r"[A-Z]\d{4} [\d:.]+ \d+ \S+:\d+\] ")  # of Python's logging, as torch sets it up
_PYTHON = "Traceback (most recent call last):"
_CPP = re.compile(r"Exception raised from |frame #\d+: |<omitting python frames>")
_STOPS = "; stopping all nodes", "stopping all nodes: "  # lines of ddp-orch (node/roles/narration.py, drain.py)
_OBEYS = re.compile(
    r"Received \S+ death signal, shutting down workers$|Sending process \d+ closing signal SIG[A-Z]+$"
    r"|torch\.distributed\.elastic\.multiprocessing\.api\.SignalException: Process \d+ got signal: \d+\b"
)
# or its line of source, or what marks a part of that
_FRAME = re.compile(r'  File ".*", line \d+, in |    \S| {4,}[~^]+$')
_BETWEEN = {
    "",
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
}


class Quieter(Stage):
    """Takes lines in order, and gives the same lines with fewer lines of agents."""

    def __init__(self, all_of_it: str = "ddp-orch logs --stream agent", *, is_tail: bool = False) -> None:
        """`all_of_it`: the command that shows every line. `is_tail`: the first lines of each host may be missing.

        Then the line that ddp-orch stops the run may be missing too. torchrun is hardly ever stopped by anybody else.
        """
        self._all_of_it = all_of_it
        self._is_tail = is_tail
        self._blocks: dict[tuple[str, int], list[Line]] = {}  # (host, attempt) -> an unfinished stack trace
        self._known: set[tuple[str, int]] = set()  # (host, attempt) of agents that have printed a line
        self._stopped: set[int] = set()  # attempts that ddp-orch is stopping
        self._obeying: list[Line] = []  # lines that are hidden if ddp-orch stops the run
        self._now = self._held_at = 0.0

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if now >= self.wake_at:
            return [*self._release(), *self.push(lines, now)]
        self._now = now
        if not self._obeying and all(line.rank is not None for line in lines):
            return lines
        return [shown for line in lines for short in self._shorten(line) for shown in self._hide_stop(short)]

    @property
    def wake_at(self) -> float:
        return self._held_at + HOLD if self._obeying else math.inf

    def flush(self, now: float) -> Sequence[Line]:
        """Show the held lines unchanged."""
        held = [*self._release(), *(line for block in self._blocks.values() for line in block)]
        self._blocks.clear()
        return sorted(held, key=lambda line: line.at)

    def _shorten(self, line: Line) -> Iterable[Line]:
        if line.rank is not None or line.text.startswith("ddp-orch: "):
            return (line,)
        key = line.host, line.attempt
        block = self._blocks.get(key)
        if block is None:
            return self._begin(key, line)
        if _continues(block[0], line) and len(block) < MAX_TRACE:
            block.append(line)
            return ()
        del self._blocks[key]
        if len(block) >= MAX_TRACE:
            return (*block, line)
        if _is_python(block[0]):
            note = f"{line.text}  ({number_of(len(block), 'line')} of torchrun's traceback: {self._all_of_it})"
            return (line._replace(text=note),)
        note = f"({number_of(len(block), 'line')} of torchrun's C++ stack: {self._all_of_it})"
        return (block[0]._replace(text=note), *self._begin(key, line))

    def _begin(self, key: tuple[str, int], line: Line) -> Iterable[Line]:
        is_cut = key not in self._known and _FRAME.match(line.text)  # starts inside a trace, as with --tail
        self._known.add(key)
        if is_cut or _bare(line) == _PYTHON or _CPP.match(line.text):
            self._blocks[key] = [line]
            return ()
        return () if line.text in _BETWEEN else (line,)

    def _hide_stop(self, line: Line) -> Iterable[Line]:
        """Hold the lines with which torchrun reacts to a stop. Drop them if ddp-orch stops the run, else show them."""
        if line.rank is None and line.text.startswith("ddp-orch: ") and any(word in line.text for word in _STOPS):
            self._stopped.add(line.attempt)
            held = [other for other in self._obeying if other.attempt == line.attempt]
            self._obeying = [other for other in self._obeying if other.attempt != line.attempt]
            return (*(other for other in held if f"first failure: {other.host}: " in line.text), line)
        if line.rank is None and _OBEYS.match(_bare(line)):
            if line.attempt not in self._stopped:
                self._held_at = self._held_at if self._obeying else self._now
                self._obeying.append(line)
            return ()
        if not self._obeying or line.at < self._obeying[0].at + HOLD:
            return (line,)
        return (*self._release(), line)

    def _release(self) -> Sequence[Line]:
        held, self._obeying = self._obeying, []
        return () if self._is_tail else held


def _is_python(first: Line) -> bool:
    return _bare(first) == _PYTHON or first.text.startswith(" ")


def _continues(first: Line, line: Line) -> bool:
    if _is_python(first):
        text = _bare(line)
        return not text or text[0] in " \t"
    return _CPP.match(line.text) is not None


def _bare(line: Line) -> str:
    return _PREFIX.sub("", line.text, count=1) if line.text[:1] in "CEFIW" else line.text
