"""Print a table without lines on stdout. On a terminal it fits the width; in a pipe nothing is cut."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

from ..output.terminal import tame

PIPE_WIDTH = 1000  # columns without a terminal
SHORTEST_WRAPPED = 12  # columns of a cell that may take several lines
GAP = 2  # columns between two cells


def print_table(
    rows: Sequence[Mapping[str, str]],
    *,
    wrapped: Collection[str],
    optional: Collection[str] = (),
    widths: Mapping[str, int] | None = None,
    dropped_first: Sequence[str] = (),
) -> None:
    """`rows`: by column, all with the same columns. `wrapped`: columns that may take several lines.

    `optional`: columns that are left out if they are empty in all rows. `widths`: the least ones, by column.
    `dropped_first`: columns that are left out one after the other while a terminal is too narrow for all of them.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    shown = {
        column: [" ".join(tame(row[column], colour=False).split()) for row in rows]
        for column in rows[0]
        if column not in optional or any(row[column] for row in rows)
    }
    least = {
        column: max(min(longest, SHORTEST_WRAPPED) if column in wrapped else longest, len(column))
        for column, cells in shown.items()
        for longest in [max(map(cell_len, cells))]
    }
    for column in dropped_first:
        if sum(least.values()) + GAP * len(least) > console.width:
            shown.pop(column, None)
            least.pop(column, None)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        fixed = column not in wrapped
        min_width = least[column] if fixed else (widths or {}).get(column, least[column])
        table.add_column(column, no_wrap=fixed, min_width=min_width, overflow="ellipsis" if fixed else "fold")
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*map(Text, cells))  # Text, because what hosts send is not markup
    console.print(table)
