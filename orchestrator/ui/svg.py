"""Draw line charts as SVG, because a report must work without scripts and without a network. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import median

WIDTH, HEIGHT = 560, 180
LEFT, RIGHT, TOP, BOTTOM = 58, 10, 8, 22
HEADROOM = 0.05  # above the highest value, as a share of the height
MAX_POINTS = 600  # per line; more are not visible
# Colours of Okabe and Ito, which colour-blind people can distinguish, and purple in the place of black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a", "#5e3c99")

Points = Sequence[tuple[float, float]]


def chart(
    title: str,
    lines: Mapping[str, Points],
    x_name: str,
    marks: Sequence[float] = (),
    *,
    from_zero: bool = True,
    gap: float = math.inf,
) -> str:
    """An SVG figure. `lines` by name; `marks` are vertical lines. Values that are not finite are left out.

    `from_zero`: the axis of the values contains 0. A loss does not need it: it would be flat at the top. `gap`: a line
    is interrupted where two points are farther apart than so many times their usual distance.

    With more lines than colours, those that differ only in what precedes the last comma of their names, which is the
    attempt, share a colour, and the lines of earlier attempts are paler.
    """
    series = {name: finite for name, points in lines.items() if (finite := [p for p in points if math.isfinite(p[1])])}
    if not series:
        return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">no data</p></figure>'
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x0, x1 = min(xs), max(xs)
    y0, y1 = min(ys), max(ys)
    if from_zero:
        y0 = min(0.0, y0)
    else:
        y0 -= (y1 - y0) * HEADROOM
    y1 += (y1 - y0) * HEADROOM
    x1, y1 = x1 + (x1 == x0), y1 + (y1 == y0)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> str:
        return f"{LEFT + (x - x0) / (x1 - x0) * inner_width:.1f},{TOP + (y1 - y) / (y1 - y0) * inner_height:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in _ticks(y0, y1):
        y = TOP + (y1 - tick) / (y1 - y0) * inner_height
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    for tick in _ticks(x0, x1):
        x = LEFT + (tick - x0) / (x1 - x0) * inner_width
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{short(tick)}</text>')
    for mark in marks:
        if x0 <= mark <= x1:
            x = LEFT + (mark - x0) / (x1 - x0) * inner_width
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    kinds = {name: name.rpartition(", ")[2] if len(series) > len(COLOURS) else name for name in series}
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    last = next(reversed(series)).rpartition(", ")[0]
    for name, points in series.items():
        colour = COLOURS[numbers[kinds[name]] % len(COLOURS)]
        is_pale = len(numbers) < len(series) and name.rpartition(", ")[0] != last
        for piece in _pieces(points, gap):
            parts.append(_line([place(x, y) for x, y in _thin(piece)], name, colour, is_pale))
    parts.append("</svg>")
    keys = _legend(list(numbers)) + ("; earlier attempts are paler" if len(numbers) < len(series) else "")
    caption = f"{escape(title)} <small>by {escape(x_name)}</small><br><small>{keys}</small>"
    return f"<figure><figcaption>{caption}</figcaption>{''.join(parts)}</figure>"


def _line(places: Sequence[str], name: str, colour: str, is_pale: bool) -> str:
    title = f"<title>{escape(name)}</title>"
    pale = ' opacity="0.4"' if is_pale else ""
    if len(places) > 1:
        return f'<polyline points="{" ".join(places)}" stroke="{colour}"{pale}>{title}</polyline>'
    x, y = places[0].split(",")
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"{pale}>{title}</circle>'


def _legend(names: Sequence[str]) -> str:
    """`attempt 1, rank 0 rank 1`: what repeats is left out."""
    keys, group = [], ""
    for number, name in enumerate(names[:16]):
        before, group = group, name.rpartition(", ")[0]
        text = name.removeprefix(f"{group}, ") if group and group == before else name
        keys.append(f'<span style="color:{COLOURS[number % len(COLOURS)]}">{escape(text)}</span>')
    return " ".join([*keys, *([f"and {len(names) - 16} more"] if len(names) > 16 else [])])


def _pieces(points: Points, gap: float) -> list[Points]:
    """A line without its gaps; see `chart`."""
    distances = [after[0] - before[0] for before, after in pairwise(points)]
    if not distances or math.isinf(gap):
        return [points]
    longest = gap * median(distances)
    cuts = [number for number, distance in enumerate(distances, 1) if distance > longest]
    return [points[start:stop] for start, stop in pairwise([0, *cuts, len(points)])]


def _thin(points: Points) -> Points:
    """Keep the lowest and the highest point of each part of a long line, so that peaks stay visible."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / (MAX_POINTS // 2))
    extremes: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        extremes += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return extremes


def _ticks(low: float, high: float) -> list[float]:
    """A few round numbers from `low` to `high`."""
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
