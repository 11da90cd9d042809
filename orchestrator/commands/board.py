"""Draw the board of `top`: a row per host, as many columns and rows as fit the screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..answers.recorded import RankSample
from ..answers.runs import FirstFailure
from ..hosts import claims
from ..output.console import fold, number_of
from ..output.folding import ranges
from ..output.lines import Mask, presentable
from ..output.terminal import one_line
from .board_rows import (
    QUIET,
    BoardRow,
    duration,
    extremes,
    figures_of,
    fullest,
    losses_of,
    number,
    or_dash,
    size_of,
    span,
)

HEALTHY = ("running", "succeeded")
BROKEN = ("failed", "lost", "no answer", "no such run")
STYLES = {
    "no answer": "bold red",
    "failed": "bold red",
    "lost": "bold red",
    "killed": "red",
    "suspect": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "restarting": "yellow",
}
LAST_LINE_MIN = 16  # characters; with less room, the board has no column of last lines

SLOW = 1.05  # times the median step time; the slowest rank is named if it takes longer


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    priority: int
    """If the screen is too narrow, columns with the highest number are left out first."""


COLUMNS = (
    _Column("HOST", 0, 0),
    _Column("RANKS", 7, 1),
    _Column("STATE", 11, 0),
    _Column("QUIET", 6, 0),
    _Column("STEP", 7, 1),
    _Column("LOSS", 8, 2),
    _Column("RATE/S", 7, 4),
    _Column("STEP s", 7, 5),
    _Column("GPU %", 7, 1),
    _Column("GPU MEM", 9, 2),
    _Column("W", 5, 6),
    _Column("°C", 3, 6),
    _Column("CPU", 9, 3),
    _Column("MEM", 5, 5),
    _Column("NET RX/TX", 13, 3),
    _Column("NIC %", 5, 5),
)


RANK_COLUMNS = (
    _Column("RANK", 5, 0),
    _Column("HOST", 0, 0),
    _Column("STATE", 11, 1),
    _Column("QUIET", 6, 0),
    _Column("STEP", 7, 1),
    _Column("LOSS", 8, 2),
    _Column("RATE/S", 7, 4),
    _Column("STEP s", 7, 3),
)


def render(
    run_id: str, rows: Sequence[BoardRow], width: int, height: int, mask: Mask, keys: str, curves: str = ""
) -> RenderableType:
    """Draw the whole screen. If not all hosts fit, failed and silent ones come first, and one line names the rest.

    `curves`: a line above the table.
    """
    head = _head(run_id, rows, curves)
    room = max(2, height - len(head) - 2 - bool(keys))
    first_failure = _first_failure(rows)
    culprit = first_failure.host if first_failure else None
    ordered = sorted(rows, key=lambda row: _sort_key(row, culprit)) if len(rows) > room else list(rows)
    shown, rest = (ordered, []) if len(rows) <= room else (ordered[: room - 1], ordered[room - 1 :])
    body: list[RenderableType] = [_table(COLUMNS, [(_cells(row), _last_line(row)) for row in shown], width, mask)]
    if rest:
        states = sorted({row.state for row in rest})
        body.append(Text(f"{len(rest)} more: {fold(row.host for row in rest)} ({', '.join(states)})", style="dim"))
    return _screen([*head, *body, _footer(rows, mask)], width, keys)


def render_ranks(
    run_id: str, rows: Sequence[BoardRow], width: int, height: int, mask: Mask, keys: str, curves: str = ""
) -> RenderableType:
    """Draw the whole screen with a row per rank. If not all ranks fit, the slowest ones come first."""
    head = _head(run_id, rows, curves)
    room = max(2, height - len(head) - 2 - bool(keys))
    ranks = sorted(((row, rank) for row in rows for rank in row.ranks), key=lambda pair: pair[1].rank)
    rest: list[int] = []
    if len(ranks) > room:
        ranks.sort(key=lambda pair: _rank_sort_key(*pair))
        rest = sorted(rank.rank for _, rank in ranks[room - 1 :])
        ranks = ranks[: room - 1]
    entries = [(_rank_cells(row, rank), row.trouble or rank.last) for row, rank in ranks]
    body: list[RenderableType] = [_table(RANK_COLUMNS, entries, width, mask)]
    if rest:
        body.append(Text(f"{len(rest)} more: {ranges(rest)}", style="dim"))
    return _screen([*head, *body, _footer(rows, mask)], width, keys)


def _head(run_id: str, rows: Sequence[BoardRow], curves: str) -> list[RenderableType]:
    lines: list[RenderableType] = [_title(run_id, rows), _training([row for row in rows if row.part])]
    return [*lines, Text(curves, style="cyan")] if curves else lines


def _screen(lines: Sequence[RenderableType], width: int, keys: str) -> RenderableType:
    whole = [*lines, Text(keys, style="dim")] if keys else list(lines)
    for line in whole:
        if isinstance(line, Text):
            line.truncate(width, overflow="ellipsis")
    return Group(*whole)


def _rank_sort_key(row: BoardRow, rank: RankSample) -> tuple[bool, float, float, int]:
    """Ranks of hosts in trouble first, then the lowest step, then the longest step time."""
    figures = rank.figures
    return row.state not in BROKEN, figures.get("step", float("inf")), -figures.get("step_time", 0.0), rank.rank


def _rank_cells(row: BoardRow, rank: RankSample) -> dict[str, str]:
    silent = row.now.clock - rank.at if row.now and rank.at and row.state == "running" else 0.0
    return {
        "RANK": str(rank.rank),
        "HOST": row.host,
        "STATE": row.state,
        "QUIET": duration(silent) if silent >= QUIET else "-",
        "STEP": or_dash(rank.figures.get("step")),
        "LOSS": or_dash(rank.figures.get("loss")),
        "RATE/S": or_dash(rank.figures.get("rate")),
        "STEP s": or_dash(rank.figures.get("step_time")),
    }


def _sort_key(row: BoardRow, culprit: str | None) -> tuple[int, float]:
    """The host of the first failure first, then failed and silent hosts, then hosts that stop; lowest step first."""
    step = row.figure("step")
    group = 0 if row.host == culprit else 1 if row.state in BROKEN else 3 if row.state in HEALTHY else 2
    return group, float("inf") if step is None else step


def _first_failure(rows: Sequence[BoardRow]) -> FirstFailure | None:
    nodes = {row.host: row.node for row in rows if row.node is not None}
    verdict = claims.verdict_of({row.host: row.part for row in rows if row.part}, nodes)
    return verdict.first_failure if verdict else None


def _title(run_id: str, rows: Sequence[BoardRow]) -> Text:
    in_run = [row for row in rows if row.node is not None and row.part]
    head = claims.head_of(row.part for row in in_run if row.part)
    first = min(in_run, key=lambda row: (row.node != head, row.node, row.host), default=None)
    part = first.part if first else None
    unreachable = sum(bool(row.trouble) for row in rows)
    state = part.state if part else "asking"
    ranks = sum(len(row.ranks) for row in rows)
    name = f" ({part.name})" if part and part.name != run_id else ""
    text = Text.assemble((f"{run_id}{name}", "bold"), "  ", (state, STYLES.get(state, "green")))
    if unreachable:
        text.append(f"  {unreachable} no answer", style="bold red")
    counts = f"{number_of(len(rows), 'host')}, {number_of(ranks, 'rank')}"
    text.append(f"  attempt {part.attempt if part else '?'}  {counts}")
    return text


def _training(rows: Sequence[BoardRow]) -> Text:
    pairs = [(row, rank) for row in rows for rank in row.ranks]
    samples = [rank for _, rank in pairs]
    words = {}
    for name, form in (("step", "step {}"), ("loss", "loss {}"), ("step_time", "{} s/step"), ("rate", "{}/s")):
        values = losses_of(samples) if name == "loss" else figures_of(samples, name)
        if values:
            low, high = map(number, extremes(values))
            words[name] = form.format(low if low == high else f"{low}..{high}")
    rates = figures_of(samples, "rate")
    if len(rates) > 1:
        # equal rates may be one rate of all ranks together, which each rank prints
        same = min(rates) == max(rates)
        words["rate"] += f" on each of {len(rates)} ranks" if same else f", {number(sum(rates))}/s in total"
    timed = sorted(
        (rank.figures["step_time"], rank.rank, row.host) for row, rank in pairs if "step_time" in rank.figures
    )
    if timed and timed[-1][0] > SLOW * timed[len(timed) // 2][0]:
        words["step_time"] += f"  slowest rank {timed[-1][1]} ({timed[-1][2]})"
    return Text("  ".join(words.values()) or "no step or loss in the ranks' last lines")


def _table(
    all_columns: Sequence[_Column], entries: Sequence[tuple[Mapping[str, str], str]], width: int, mask: Mask
) -> Table:
    """`entries`: the cells of a row by the title of their column, and its last line."""
    texts = [cells for cells, _ in entries]
    host_width = max([4, *(len(text["HOST"]) for text in texts)])
    used = [column for column in all_columns if any(text.get(column.title, "") not in ("", "-") for text in texts)]
    columns = _fit(used, host_width, width)
    free_width = width - _width(columns, host_width)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        is_text = column.title in ("HOST", "STATE", "RANKS")
        table.add_column(
            column.title,
            width=column.width or host_width,
            justify="left" if is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    if free_width >= LAST_LINE_MIN:
        table.add_column("LAST LINE", width=free_width - 1, no_wrap=True, overflow="ellipsis")
    for text, last_line in entries:
        cells = [
            Text(text.get(column.title, "-"), style=STYLES.get(text["STATE"], "") if column.title == "STATE" else "")
            for column in columns
        ]
        if free_width >= LAST_LINE_MIN:
            cells.append(Text(_show(last_line, mask)))
        table.add_row(*cells)
    return table


def _fit(columns: Sequence[_Column], host_width: int, width: int) -> list[_Column]:
    """The columns that have room. (rich would make all columns narrower instead.)"""
    fitting = list(columns)
    while _width(fitting, host_width) > width and len(fitting) > 2:
        lowest = max(column.priority for column in fitting)
        fitting.remove(next(column for column in reversed(fitting) if column.priority == lowest))
    return fitting


def _width(columns: Sequence[_Column], host_width: int) -> int:
    return sum((column.width or host_width) + 1 for column in columns)


def _cells(row: BoardRow) -> dict[str, str]:
    cells = {"HOST": row.host, "STATE": row.state}
    if row.now is None:
        return cells
    gpus = row.now.gpus
    ranks = sorted(rank.rank for rank in row.ranks)
    memory_used, memory_total = row.now.memory
    traffic = [row.rate("received"), row.rate("sent")]
    share = row.line_share()
    cpu = row.rate("cpu")
    return {
        **cells,
        "RANKS": ranges(ranks) or "-",
        "QUIET": "-" if (quiet := row.quiet()) is None else duration(quiet),
        "STEP": or_dash(row.figure("step")),
        "LOSS": or_dash(row.figure("loss")),
        "RATE/S": or_dash(row.figure("rate")),
        "STEP s": or_dash(row.figure("step_time")),
        "GPU %": span([gpu.busy for gpu in gpus]),
        "GPU MEM": fullest(gpus),
        "W": or_dash(sum(watts) if (watts := [gpu.watts for gpu in gpus if gpu.watts is not None]) else None),
        "°C": or_dash(max((gpu.celsius for gpu in gpus if gpu.celsius is not None), default=None)),
        "CPU": "-" if cpu is None else f"{cpu:.1f}/{row.now.cores}",
        "MEM": f"{memory_used / memory_total:.0%}",
        "NET RX/TX": "-" if None in traffic else "/".join(size_of(value or 0.0) for value in traffic),
        "NIC %": "-" if share is None else f"{share:.0%}",
    }


def _last_line(row: BoardRow) -> str:
    """The newest line of the host's ranks, or why the host does not answer."""
    if row.trouble:
        return row.trouble
    newest = max(row.ranks, key=lambda rank: rank.at, default=None)
    return f"{newest.rank}: {newest.last}" if newest and newest.last else ""


def _footer(rows: Sequence[BoardRow], mask: Mask) -> Text:
    """The first failure if there is one, else the newest line of all hosts."""
    first = _first_failure(rows)
    if first:
        return Text(_show(f"first failure: {first.host}: {first}", mask), style="bold red")
    newest = max(((row.host, rank) for row in rows for rank in row.ranks), key=lambda pair: pair[1].at, default=None)
    if newest is None or not newest[1].last:
        return Text("")
    host, rank = newest
    return Text(_show(f"{host}:{rank.rank} | {rank.last}", mask), style="dim")


def _show(text: str, mask: Mask) -> str:
    return one_line(presentable(text, False, mask))
