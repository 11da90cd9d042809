"""Shorten torchrun's stack traces to one line each, and hide how it reacts to a stop that ddp-orch requested. Pure.

Whenever a run is stopped, and at the end of many that went well, each host's torchrun says so in 25 lines of Python and
30 of C++. Newcomers take them for the cause; only the exit status counts. What the ranks say is never touched, and
nothing is lost: `logs --stream agent`, `--grep`, `--json` and `--output` have every line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from .lines import Line
from .pipeline import Stage

BLOCK_MOST = 1000  # lines; what is longer is no stack trace
HOLD = 3.0  # s until our own word that we stop a run is there: other nodes have heard it before the head can say it
_PREFIX = re.compile(r"[A-Z]\d{4} [\d:.]+ \d+ \S+:\d+\] ")  # of Python's logging, as torch sets it up
_PYTHON = "Traceback (most recent call last):"
_CPP = re.compile(r"Exception raised from |frame #\d+: |<omitting python frames>")
_STOPS = "; stopping all nodes", "stopping all nodes: "  # our own word for it (node/run/head.py)
_OBEYS = re.compile(
    r"Received \S+ death signal, shutting down workers$|Sending process \d+ closing signal SIG[A-Z]+$"
    r"|torch\.distributed\.elastic\.multiprocessing\.api\.SignalException: Process \d+ got signal: \d+\b"
)
_FRAME = re.compile(r'  File ".*", line \d+, in ')
_BETWEEN = {
    "",
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
}


class Quieter(Stage):
    """Lines in, in their order; lines out, of which the agents' are fewer."""

    def __init__(self, all_of_it: str = "ddp-orch logs --stream agent") -> None:
        """`all_of_it`: the command that shows every line."""
        self._all_of_it = all_of_it
        self._blocks: dict[tuple[str, int], list[Line]] = {}  # (host, attempt) -> a stack trace that goes on
        self._known: set[tuple[str, int]] = set()  # those that have said anything
        self._stopped: set[int] = set()  # attempts that we are stopping
        self._obeying: list[Line] = []  # what is not to be shown if it is we who stop the run
        self._now = self._held_at = 0.0

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if now >= self.wake_at:
            held, self._obeying = self._obeying, []
            return [*held, *self.push(lines, now)]
        self._now = now
        if not self._obeying and all(line.rank is not None for line in lines):
            return lines
        return [shown for line in lines for short in self._shorten(line) for shown in self._hide_stop(short)]

    @property
    def wake_at(self) -> float:
        return self._held_at + HOLD if self._obeying else math.inf

    def flush(self, now: float) -> Sequence[Line]:
        """What was held is shown as it is."""
        held = [*self._obeying, *(line for block in self._blocks.values() for line in block)]
        self._blocks.clear()
        self._obeying.clear()
        return sorted(held, key=lambda line: line.at)

    def _shorten(self, line: Line) -> Iterable[Line]:
        if line.rank is not None or line.text.startswith("ddp-orch: "):
            return (line,)
        key = line.host, line.attempt
        block = self._blocks.get(key)
        if block is None:
            return self._begin(key, line)
        if _goes_on(block[0], line) and len(block) < BLOCK_MOST:
            block.append(line)
            return ()
        del self._blocks[key]
        if len(block) >= BLOCK_MOST:
            return (*block, line)
        if _is_python(block[0]):
            note = f"{line.text}  ({len(block)} lines of torchrun's traceback: {self._all_of_it})"
            return (line._replace(text=note),)
        note = f"({len(block)} lines of torchrun's C++ stack: {self._all_of_it})"
        return (block[0]._replace(text=note), *self._begin(key, line))

    def _begin(self, key: tuple[str, int], line: Line) -> Iterable[Line]:
        cut_off = key not in self._known and _FRAME.match(line.text)  # as by --tail: in the midst of one
        self._known.add(key)
        if cut_off or _bare(line) == _PYTHON or _CPP.match(line.text):
            self._blocks[key] = [line]
            return ()
        return () if line.text in _BETWEEN else (line,)

    def _hide_stop(self, line: Line) -> Iterable[Line]:
        """Hold how torchrun obeys: with our own word that we stop the run it is dropped, without it shown."""
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
        held, self._obeying = self._obeying, []
        return (*held, line)


def _is_python(first: Line) -> bool:
    return _bare(first) == _PYTHON or first.text.startswith(" ")


def _goes_on(first: Line, line: Line) -> bool:
    if _is_python(first):
        text = _bare(line)
        return not text or text[0] in " \t"
    return _CPP.match(line.text) is not None


def _bare(line: Line) -> str:
    return _PREFIX.sub("", line.text, count=1) if line.text[:1] in "CEFIW" else line.text
