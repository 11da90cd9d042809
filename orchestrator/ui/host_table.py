"""A table of hosts for a terminal. Hosts with the same cells share a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..output.console import fold
from ..output.terminal import RESET, cut

GAP = "  "
MAX_HOSTS_WIDTH = 24  # columns for the names of the hosts, if the rest needs the space
STYLES = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "ok": "\x1b[32m"}


@dataclass(frozen=True)
class Row:
    """What the table shows about one host."""

    cells: Mapping[str, str]
    """By column; a column that is missing or empty is shown as `-`."""
    state: str
    """The last cell, such as `2 errors`."""
    style: str = "ok"
    """How the state is coloured: a key of STYLES."""


def render(rows: Mapping[str, Row], columns: Sequence[str], width: int, *, colour: bool) -> list[str]:
    """`rows`: by host, in order. `columns`: the most important first; the last ones are left out if they do not fit.

    What is left out and is the same on all hosts is printed below the table.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for host, row in rows.items():
        groups.setdefault((tuple(row.cells.get(name, "") for name in columns), row.state, row.style), []).append(host)
    merged = [(fold(hosts), rows[hosts[0]]) for hosts in groups.values()]
    known = [name for name in columns if any(row.cells.get(name) for _, row in merged)]
    shown, equal = list(known), []
    names_width = min(MAX_HOSTS_WIDTH, max(len(names) for names, _ in merged))
    while shown and _width(shown, merged, names_width) > width:
        same = [name for name in shown if len({row.cells.get(name, "") for _, row in merged}) == 1]
        dropped = same[-1] if same and len(merged) > 1 else shown[-1]
        if dropped in same:
            equal.append(dropped)
        shown.remove(dropped)
    lines = _lines(merged, shown, width, colour)
    if equal:
        values = ", ".join(f"{name.lower()} {merged[0][1].cells.get(name, '-')}" for name in known if name in equal)
        lines.append(cut(f"on {'all of them' if len(rows) > 1 else 'it'}: {values}", width))
    return lines


def _width(columns: Sequence[str], merged: Sequence[tuple[str, Row]], names_width: int) -> int:
    widths = [max(len(name), *(len(row.cells.get(name) or "-") for _, row in merged)) for name in columns]
    return names_width + sum(widths) + max(len(row.state) for _, row in merged) + len(GAP) * (len(columns) + 1)


def _lines(merged: Sequence[tuple[str, Row]], columns: Sequence[str], width: int, colour: bool) -> list[str]:
    room = max(MAX_HOSTS_WIDTH, width - _width(columns, merged, 0))
    blocks = [(_wrap(names, room), row) for names, row in merged]
    names_width = max(len("HOST"), *(len(part) for parts, _ in blocks for part in parts))
    widths = [max(len(name), *(len(row.cells.get(name) or "-") for _, row in merged)) for name in columns]
    header = GAP.join(f"{name:{size}}" for name, size in zip(["HOST", *columns], [names_width, *widths], strict=True))
    lines = [cut(f"{header}{GAP}STATE", width)]
    for parts, row in blocks:
        cells = [f"{row.cells.get(name) or '-':{size}}" for name, size in zip(columns, widths, strict=True)]
        state = f"{STYLES[row.style]}{row.state}{RESET}" if colour else row.state
        lines.append(GAP.join([f"{parts[0]:{names_width}}", *cells, state]))
        lines += parts[1:]
    return lines


def _wrap(names: str, room: int) -> list[str]:
    """Folded names in lines that are not longer than `room`; a line is cut after a comma."""
    lines: list[str] = []
    while len(names) > room:
        end = names.rfind(",", 0, room) + 1 or room
        lines.append(names[:end])
        names = " " + names[end:]
    return [*lines, names]
