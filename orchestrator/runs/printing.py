"""Print the lines of a run on stdout: for people, or as JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from ..output import lines
from ..output.console import wants_colour
from ..output.folding import Folder
from ..output.lines import Line, Mask, Painter
from ..output.pipeline import Pipeline, Stage
from ..output.torchrun_noise import Quieter


def printer(
    hosts: Sequence[str],
    mask: Mask,
    *,
    as_json: bool,
    timestamps: bool = False,
    quiet: bool = True,
    all_of_it: str,
    fold_ranks: int | None = None,
) -> Stage:
    """Print lines on stdout: tagged for people, or one JSON object each.

    `quiet`: of torchrun's own tracebacks only the last line; the command `all_of_it` shows them. `fold_ranks`: equal
    lines of so many ranks as one.
    """
    if as_json:
        return _Print(lambda line: lines.to_json(line, mask))
    painter = Painter(hosts, wants_colour(sys.stdout, os.environ), timestamps, mask)
    stages: list[Stage] = [Quieter(all_of_it)] if quiet else []
    if fold_ranks is None:
        return Pipeline([*stages, _Print(painter.paint)])
    return Pipeline([*stages, Folder(fold_ranks), _Print(painter.paint_folded)])


class _Print(Stage):
    """The end of a chain."""

    def __init__(self, render: Callable[[Line], str]) -> None:
        self._render = render

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if lines:
            sys.stdout.write("\n".join([*map(self._render, lines), ""]))
            sys.stdout.flush()
        return ()
