"""Draw many ranks in one picture: a band of values, a heat map, and the attempts of a run in time. SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from .svg import Points, short

COLUMNS = 60  # of the heat map, and of a band; at most
MAX_ROWS = 64  # of the heat map; with more ranks, neighbours share a row, which shows the slowest of them
CELL_HEIGHT, LABEL_WIDTH, WIDTH = 10, 58, 1120
COLD_TO_HOT = ("#0060a0", "#3f86b5", "#86b0c8", "#d9d9d2", "#f0b46a", "#e07b39", "#b3261e")
"""From faster than the median rank of the same time to slower."""
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
    columns = min(COLUMNS, len({x for points in ranks.values() for x, _ in points}))
    cells = _cells(ranks, columns)
    if len(ranks) < 2 or not cells:
        return ""
    together = math.ceil(len(ranks) / MAX_ROWS)
    order = sorted(ranks)
    rows = [order[start : start + together] for start in range(0, len(order), together)]
    middle = {column: median(values.values()) for column, values in cells.items()}
    width = (WIDTH - LABEL_WIDTH) / columns
    height = len(rows) * CELL_HEIGHT
    parts = [f'<svg viewBox="0 0 {WIDTH} {height + 16}" role="img" aria-label="{escape(title)}">']
    for number, members in enumerate(rows):
        y = number * CELL_HEIGHT
        if number % max(1, len(rows) // 16) == 0:
            parts.append(f'<text x="{LABEL_WIDTH - 6}" y="{y + 9}" text-anchor="end">{members[0]}</text>')
        colours = [_colour([cells.get(column, {}).get(rank) for rank in members], middle.get(column, 0.0))
                   for column in range(columns)]  # fmt: skip
        for first, count, colour in _stretches(colours):
            if colour:
                x = LABEL_WIDTH + first * width
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{count * width:.1f}" height="9" fill="{colour}"/>')
    xs = [x for points in ranks.values() for x, _ in points]
    parts.append(f'<text x="{LABEL_WIDTH}" y="{height + 12}">{short(min(xs))}</text>')
    parts.append(f'<text x="{WIDTH}" y="{height + 12}" text-anchor="end">{short(max(xs))}</text></svg>')
    keys = "".join(f'<span class="key" style="background:{colour}"></span>' for colour in COLD_TO_HOT)
    caption = f"{escape(title)} <small>by {escape(x_name)}; faster {keys} slower than the median rank</small>"
    picture = f'<div class="scroll">{"".join(parts)}</div>'
    return f'<figure class="wide heat"><figcaption>{caption}</figcaption>{picture}</figure>'


def attempts(starts: Sequence[float], marks: Mapping[float, str], end: float) -> str:
    """The attempts of a run as bars in time, and events as marks. All in seconds since the first attempt."""
    if not starts or end <= 0:
        return ""
    bars = []
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], end], strict=True), 1):
        x, width = start / end * WIDTH, max(2.0, (stop - start) / end * WIDTH - 2)
        bars.append(f'<rect class="attempt" x="{x:.1f}" y="6" width="{width:.1f}" height="22" rx="3"/>')
        if width > 70:
            bars.append(f'<text class="on-bar" x="{x + 8:.1f}" y="21">attempt {number}</text>')
    for at, what in marks.items():
        x = min(WIDTH - 3.0, at / end * WIDTH)
        bars.append(f'<rect class="event" x="{x:.1f}" y="0" width="3" height="34"><title>{escape(what)}</title></rect>')
    svg = f'<svg class="attempts" viewBox="0 0 {WIDTH} 34" role="img" aria-label="attempts">{"".join(bars)}</svg>'
    return f'<div class="scroll">{svg}</div>'


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


def _colour(values: Sequence[float | None], middle: float) -> str:
    known = [value for value in values if value is not None]
    if not known or middle <= 0:
        return ""
    return COLD_TO_HOT[sum(max(known) / middle > limit for limit in LIMITS)]


def _stretches(colours: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first, count, colour) of equal neighbours."""
    found: list[tuple[int, int, str]] = []
    for number, colour in enumerate(colours):
        if found and found[-1][2] == colour:
            found[-1] = (found[-1][0], found[-1][1] + 1, colour)
        else:
            found.append((number, 1, colour))
    return found
