"""Draw line charts as SVG, because a report must work without scripts and without a network. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 560, 180
LEFT, RIGHT, TOP, BOTTOM = 58, 10, 8, 22
HEADROOM = 0.05  # above the highest value, as a share of the height
MAX_POINTS = 600  # per line; more are not visible
# Colours of Okabe and Ito, which colour-blind people can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")

Points = Sequence[tuple[float, float]]


def chart(
    title: str, lines: Mapping[str, Points], x_name: str, marks: Sequence[float] = (), *, from_zero: bool = True
) -> str:
    """An SVG figure. `lines` by name; `marks` are vertical lines. Values that are not finite are left out.

    `from_zero`: the axis of the values contains 0. A loss does not need it: it would be flat at the top.
    """
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in lines.items()}
    series = {name: _thin(points) for name, points in finite.items() if points}
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
    for number, (name, points) in enumerate(series.items()):
        coordinates = " ".join(place(x, y) for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        if len(points) == 1:
            cx, cy = coordinates.split(",")
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"><title>{escape(name)}</title></circle>')
        else:
            parts.append(f'<polyline points="{coordinates}" stroke="{colour}"><title>{escape(name)}</title></polyline>')
    parts.append("</svg>")
    keys, group = "", ""
    for number, name in enumerate(list(series)[:16]):  # `attempt 1, rank 0 rank 1`: what repeats is left out
        before, group = group, name.rpartition(", ")[0]
        text = name.removeprefix(f"{group}, ") if group and group == before else name
        keys += f'<span style="color:{COLOURS[number % len(COLOURS)]}">{escape(text)}</span> '
    if len(series) > 16:
        keys += f"and {len(series) - 16} more"
    caption = f"{escape(title)} <small>by {escape(x_name)}</small><br><small>{keys}</small>"
    return f"<figure><figcaption>{caption}</figcaption>{''.join(parts)}</figure>"


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
