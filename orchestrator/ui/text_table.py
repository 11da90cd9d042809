"""Print a table without lines on stdout. On a terminal it fits the width; in a pipe nothing is cut."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

from ..output.terminal import tame

PIPE_WIDTH = 1000  # columns without a terminal


def print_table(
    rows: Sequence[Mapping[str, str]],
    *,
    wrapped: Collection[str],
    optional: Collection[str] = (),
    widths: Mapping[str, int] | None = None,
) -> None:
    """`rows`: by column, all with the same columns. `wrapped`: columns that may take several lines.

    `optional`: columns that are left out if they are empty in all rows. `widths`: the least ones, by column.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0]:
        if column in optional and not any(row[column] for row in rows):
            continue
        fixed = column not in wrapped
        min_width = (widths or {}).get(column)
        table.add_column(column, no_wrap=fixed, min_width=min_width, overflow="ellipsis" if fixed else "fold")
    for row in rows:
        cells = [" ".join(tame(row[str(column.header)], colour=False).split()) for column in table.columns]
        table.add_row(*map(Text, cells))  # Text, because what hosts send is not markup
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
