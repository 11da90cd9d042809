"""Draw many ranks in one picture: a band of values, a heat map, and the attempts of a run in time. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import median

from .svg import Points, short

COLUMNS = 60  # of the heat map, and of a band; at most
MAX_ROWS = 64  # of the heat map; with more ranks, neighbours share a row, which shows the slowest of them
CELL_HEIGHT, LABEL_WIDTH, WIDTH = 10, 58, 1120
LABELS = 16  # about so many rows have one
LABEL_HEIGHT = 14  # of a cell, where all rows have one
COLD_TO_HOT = ("#0060a0", "#3f86b5", "#86b0c8", "#d9d9d2", "#f0b46a", "#e07b39", "#b3261e")
"""From faster than the median rank of the same time to slower."""
IDLE_TO_BUSY = ("#b3261e", "#e07b39", "#f0b46a", "#c9d6c0", "#7fb894", "#00734f")
LIMITS = (0.9, 0.97, 0.99, 1.01, 1.1, 1.3)
"""Times the median, between these colours."""


def summarise(lines: Mapping[str, Points]) -> dict[str, Points]:
    """Three lines in the place of many: the lowest, the median and the highest value of each stretch."""
    points = [(x, y) for line in lines.values() for x, y in line if math.isfinite(y)]
    if not points:
        return {}
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    stretches: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        stretches.setdefault(_column(x, x0, x1, COLUMNS), []).append((x, y))
    middle = {number: median(x for x, _ in stretch) for number, stretch in sorted(stretches.items())}
    return {
        name: tuple((middle[number], choose([y for _, y in stretches[number]])) for number in middle)
        for name, choose in (("highest", max), ("median", median), ("lowest", min))
    }


def heat_map(title: str, ranks: Mapping[int, Points], x_name: str) -> str:
    """A row per rank, and columns of time. The colour compares a rank with the median rank of its column."""
    columns = _columns(ranks.values())
    cells = _cells(ranks, columns)
    if len(ranks) < 2 or not cells:
        return ""
    middle = {column: median(values.values()) for column, values in cells.items()}

    def colour(column: int, values: Sequence[float]) -> str:
        share = max(values) / middle[column] if middle[column] > 0 else None
        return "" if share is None else COLD_TO_HOT[sum(share > limit for limit in LIMITS)]

    keys = "".join(f'<span class="key" style="background:{colour}"></span>' for colour in COLD_TO_HOT)
    note = f"by {escape(x_name)}; faster {keys} slower than the median rank"
    return _grid(title, note, {rank: str(rank) for rank in ranks}, ranks, cells, colour, LABEL_WIDTH)


def use_map(title: str, hosts: Mapping[str, Points], x_name: str) -> str:
    """A row per host, and columns of time. The colour is the share that was used, of 0 to 100 percent."""
    if len(hosts) < 2:
        return ""
    lines = dict(enumerate(hosts.values()))
    cells = _cells(lines, _columns(hosts.values()))

    def colour(_: int, values: Sequence[float]) -> str:
        return IDLE_TO_BUSY[min(len(IDLE_TO_BUSY) - 1, int(max(0.0, min(values)) / 100 * len(IDLE_TO_BUSY)))]

    keys = "".join(f'<span class="key" style="background:{colour}"></span>' for colour in IDLE_TO_BUSY)
    names = dict(enumerate(hosts))
    room = LABEL_WIDTH + 5 * min(20, max(map(len, hosts)))
    return _grid(title, f"by {escape(x_name)}; idle {keys} busy", names, lines, cells, colour, room) if cells else ""


def _grid(
    title: str,
    note: str,
    names: Mapping[int, str],
    lines: Mapping[int, Points],
    cells: Mapping[int, Mapping[int, float]],
    colour: Callable[[int, Sequence[float]], str],
    room: int,
) -> str:
    """`note`: HTML. `names`: of the rows. `cells`: column -> row -> value. `room`: for the names."""
    together = math.ceil(len(lines) / MAX_ROWS)
    order = sorted(lines)
    rows = [order[start : start + together] for start in range(0, len(order), together)]
    columns = _columns(lines.values())
    cell = LABEL_HEIGHT if len(rows) < 2 * LABELS else CELL_HEIGHT
    width, height = (WIDTH - room) / columns, len(rows) * cell
    parts = [f'<svg viewBox="0 0 {WIDTH} {height + 16}" role="img" aria-label="{escape(title)}">']
    for number, members in enumerate(rows):
        y = number * cell
        if number % max(1, len(rows) // LABELS) == 0:
            name = escape(names[members[0]])
            parts.append(f'<text x="{room - 6}" y="{y + cell - 2}" text-anchor="end">{name}</text>')
        known = [[cells[column][row] for row in members if row in cells.get(column, {})] for column in range(columns)]
        colours = [colour(column, values) if values else "" for column, values in enumerate(known)]
        for first, count, fill in _stretches(colours):
            if fill:
                place = f'x="{room + first * width:.1f}" y="{y}" width="{count * width:.1f}" height="{cell - 1}"'
                parts.append(f'<rect {place} fill="{fill}"/>')
    xs = [x for points in lines.values() for x, _ in points]
    parts.append(f'<text x="{room}" y="{height + 12}">{short(min(xs))}</text>')
    parts.append(f'<text x="{WIDTH}" y="{height + 12}" text-anchor="end">{short(max(xs))}</text></svg>')
    picture = f'<div class="scroll">{"".join(parts)}</div>'
    caption = f"{escape(title)} <small>{note}</small>"
    return f'<figure class="wide heat"><figcaption>{caption}</figcaption>{picture}</figure>'


def _columns(lines: Iterable[Points]) -> int:
    return max(1, min(COLUMNS, len({x for points in lines for x, _ in points})))


def attempts(bars: Sequence[tuple[float, float]], marks: Mapping[float, str], end: float) -> str:
    """The attempts of a run as bars in time, and events as marks. All in seconds since the first attempt.

    `bars`: when each attempt began and ended. In between, the run waited.
    """
    if not bars or end <= 0:
        return ""
    parts = []
    for number, (start, stop) in enumerate(bars, 1):
        place = f"left:{100 * start / end:.2f}%;width:{100 * max(0.0, stop - start) / end:.2f}%"
        title = f"attempt {number}: {start:.0f} s to {stop:.0f} s"
        text = f"<b><span>attempt </span>{number}</b>"  # of a narrow bar, only the number is shown
        parts.append(f'<div class="attempt" style="{place}" title="{title}">{text}</div>')
    for at, what in marks.items():
        place = f"left:min({100 * at / end:.2f}%,100% - 3px)"
        parts.append(f'<div class="event" style="{place}" title="{escape(what)}"></div>')
    return f'<div class="attempts" role="img" aria-label="attempts">{"".join(parts)}</div>'


def _column(x: float, x0: float, x1: float, columns: int) -> int:
    return min(columns - 1, int((x - x0) / (x1 - x0) * columns)) if x1 > x0 else 0


def _cells(ranks: Mapping[int, Points], columns: int) -> dict[int, dict[int, float]]:
    """Column -> rank -> mean value."""
    xs = [x for points in ranks.values() for x, _ in points]
    if not xs:
        return {}
    x0, x1 = min(xs), max(xs)
    sums: dict[int, dict[int, list[float]]] = {}
    for rank, points in ranks.items():
        for x, y in points:
            if math.isfinite(y):
                sums.setdefault(_column(x, x0, x1, columns), {}).setdefault(rank, []).append(y)
    return {column: {rank: sum(ys) / len(ys) for rank, ys in row.items()} for column, row in sums.items()}


def _stretches(colours: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first, count, colour) of equal neighbours."""
    found: list[tuple[int, int, str]] = []
    for number, colour in enumerate(colours):
        if found and found[-1][2] == colour:
            found[-1] = (found[-1][0], found[-1][1] + 1, colour)
        else:
            found.append((number, 1, colour))
    return found
