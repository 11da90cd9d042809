"""Print the lines of a run on stdout, for people or as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from ..inventory.advice import AboutRun
from ..output import lines
from ..output.bars import BarFilter
from ..output.console import Console, number_of, wants_colour
from ..output.folding import FirstLinesFolder, Folder
from ..output.harmless import HarmlessFilter
from ..output.lines import Line, Mask, Painter
from ..output.pipeline import Pipeline, Stage
from ..output.torchrun_noise import Quieter
from .status_line import RunStatus, StatusLine

BAR_INTERVAL = 10.0  # s between two states of a progress bar, without a status line


def make_printer(
    hosts: Sequence[str],
    mask: Mask,
    *,
    as_json: bool,
    timestamps: bool = False,
    quiet: bool = True,
    is_tail: bool = False,
    full_output_command: str,
    fold_ranks: int | None = None,
    fold_start: int | None = None,
    describe_hidden: Callable[[int], object] | None = None,
    status_line: StatusLine | None = None,
) -> Stage:
    """A stage that prints lines on stdout: with tags for people, or one JSON object per line.

    `quiet`: show few states of progress bars, shorten torchrun's own tracebacks to their last line, and name
    `full_output_command`, which shows them whole. `is_tail`: the first lines of hosts are left out. `fold_ranks`:
    the number of ranks; equal lines of several ranks are printed once. `fold_start`: the same, on a terminal, only
    for the first lines of each rank. `describe_hidden`: hide harmless warnings of torch, and call this with their
    number at the end. `status_line`: draw it below the lines; it shows progress bars, so only their last states are
    printed.
    """
    if as_json:
        return _Print(lambda line: lines.to_json(line, mask))
    painter = Painter(hosts, wants_colour(sys.stdout, os.environ), timestamps, mask)
    stages: list[Stage] = [HarmlessFilter(describe_hidden)] if describe_hidden else []
    if quiet:
        stages += [
            BarFilter() if status_line else BarFilter(BAR_INTERVAL),
            Quieter(full_output_command, is_tail=is_tail),
        ]
    if fold_ranks is not None:
        stages.append(Folder(fold_ranks))
    elif fold_start is not None and fold_start > 1 and sys.stdout.isatty():
        stages.append(FirstLinesFolder(fold_start))

    def paint(line: Line) -> str:
        return painter.paint_folded(line) if line.tag else painter.paint(line)

    if status_line is None:
        return Pipeline([*stages, _Print(paint)])
    status_line.printer = Pipeline([*stages, _Print(paint, status_line.clear)])
    return status_line


def make_status_line(console: Console, ranks: int, began: float) -> StatusLine | None:
    """None if the output does not go to a terminal. `began`: when the run started, seconds, monotonic."""
    return StatusLine(RunStatus(ranks, began), console.status) if sys.stdout.isatty() else None


def describe_hidden(console: Console, about: AboutRun) -> Callable[[int], None]:
    """Say how many harmless warnings were hidden, and how to see them."""

    def describe(count: int) -> None:
        console.note(
            f"{number_of(count, 'harmless warning')} hidden; to see all lines: {about.command('logs', '--all')}"
        )

    return describe


class _Print(Stage):
    """The last stage: it prints."""

    def __init__(self, render: Callable[[Line], str], before: Callable[[], object] = lambda: None) -> None:
        """`before`: called before each print."""
        self._render = render
        self._before = before

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if lines:
            self._before()
            sys.stdout.write("\n".join([*map(self._render, lines), ""]))
            sys.stdout.flush()
        return ()
