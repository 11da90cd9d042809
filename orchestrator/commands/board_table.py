"""The tables of the board of `top`: which columns have room, and what is in their cells. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.text import Text

from ..answers.recorded import GpuUsage, RankSample
from ..output.folding import ranges
from ..output.terminal import cut
from .board_rows import QUIET, BoardRow, duration, figures_of, fullest, newest_of, number, or_dash, size_of, span
from .curves import History, bar, blocks_of, sparkline

STYLES = {
    "no answer": "bold red",
    "failed": "bold red",
    "lost": "bold red",
    "killed": "red",
    "suspect": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "restarting": "yellow",
    "running": "green",
    "succeeded": "green",
    "spare": "dim",
    "witness": "dim",
    "left": "dim",
}
SLOW, VERY_SLOW = 1.05, 1.3  # times the median step time: yellow, red
IDLE = 0.5  # times the median load of all GPUs: a GPU that is less busy is yellow
FULL = 0.95  # of memory: yellow
LONG_QUIET = 60.0  # s without a line of any rank: yellow. In many runs, only rank 0 prints
LAST_LINE_MIN = 16  # characters; with less room, the board has no column of last lines
MOST_GPUS = 16  # of a host, with a block each
TREND = 16  # characters of the curve in a row
BAR = 8  # characters

Cell = tuple[str, str]
"""Its text, and its style."""
DASH: Cell = ("-", "")


@dataclass(frozen=True)
class Column:
    title: str
    width: int
    priority: int
    """If the screen is too narrow, columns with the highest number are left out first."""
    is_text: bool = False
    """Aligned to the left."""


@dataclass(frozen=True)
class Scale:
    """What is usual in this run, to find what is not."""

    step_time: float | None
    """The median of all ranks, seconds."""
    longest: float
    """The longest step time, seconds."""
    busy: float | None
    """The median load of all GPUs, percent."""
    quiet: float
    """Seconds since any rank printed a line."""


@dataclass(frozen=True)
class Entry:
    """A row of a table."""

    key: str
    """Of the host, or of the rank: what the arrow keys mark."""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """By the title of their column; a title without a cell has a dash."""
    last_line: str = ""


HOST_COLUMNS = (
    Column("HOST", 0, 0, True),
    Column("RANKS", 7, 1, True),
    Column("STATE", 11, 0, True),
    Column("QUIET", 6, 0),
    Column("STEP", 7, 1),
    Column("LOSS", 8, 2),
    Column("RATE/S", 7, 4),
    Column("STEP s", 7, 3),
    Column("GPU %", 7, 1),
    Column("GPUS", MOST_GPUS, 3, True),
    Column("GPU MEM", 9, 2),
    Column("MEM ▕▏", BAR, 7, True),
    Column("W", 5, 6),
    Column("°C", 3, 6),
    Column("CPU", 9, 3),
    Column("CPU ▕▏", BAR, 7, True),
    Column("MEM", 5, 5),
    Column("RX/TX B/s", 13, 3),
    Column("NIC %", 5, 5),
    Column("LOAD", TREND, 4, True),
)
RANK_COLUMNS = (
    Column("RANK", 5, 0),
    Column("HOST", 0, 0, True),
    Column("STATE", 11, 1, True),
    Column("QUIET", 6, 0),
    Column("STEP", 7, 1),
    Column("LOSS", 8, 2),
    Column("RATE/S", 7, 4),
    Column("STEP s", 7, 1),
    Column("STEP ▕▏", BAR, 2, True),
    Column("TREND", TREND, 4, True),
    Column("GPU %", 5, 3),
    Column("GPU MEM", 9, 5),
)
GPU_COLUMNS = (
    Column("GPU", 4, 0),
    Column("BUSY", 5, 0),
    Column("BUSY ▕▏", 2 * BAR, 2, True),
    Column("GPU MEM", 9, 1),
    Column("MEM ▕▏", 2 * BAR, 3, True),
    Column("W", 5, 4),
    Column("°C", 3, 4),
    Column("LOAD", 2 * TREND, 5, True),
)


def scale_of(rows: Sequence[BoardRow]) -> Scale:
    times = figures_of([rank for row in rows for rank in row.ranks], "step_time")
    busy = [gpu.busy for row in rows if row.now for gpu in row.now.gpus if gpu.busy is not None]
    running = [row for row in rows if row.state == "running"]
    silences = [row.now.clock - rank.at for row in running if row.now for rank in row.ranks if rank.at]
    return Scale(
        median(times) if times else None,
        max(times, default=0.0),
        median(busy) if busy else None,
        min(silences, default=0.0),
    )


def host_entry(row: BoardRow, scale: Scale, history: History | None) -> Entry:
    """`history`: None: the terminal cannot show blocks, so there are no bars and curves."""
    cells: dict[str, Cell] = {"HOST": (row.host, ""), "STATE": (row.state, STYLES.get(row.state, ""))}
    if row.now is None:
        return Entry(row.host, cells, row.trouble)
    now, gpus = row.now, row.now.gpus
    used, total = now.memory
    traffic, share, cpu = [row.rate("received"), row.rate("sent")], row.line_share(), row.rate("cpu")
    quiet = row.quiet()
    watts = [gpu.watts for gpu in gpus if gpu.watts is not None]
    busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
    cells |= {
        "RANKS": _plain(ranges(sorted(rank.rank for rank in row.ranks)) or "-"),
        "QUIET": DASH if quiet is None else _silence(quiet, scale),
        "STEP": _plain(or_dash(row.figure("step"))),
        "LOSS": _loss(row.figure("loss")),
        "RATE/S": _plain(or_dash(row.figure("rate"))),
        "STEP s": _step_time(row.figure("step_time"), scale),
        "GPU %": (span(busy), _idle(min(busy), scale) if busy else ""),
        "GPU MEM": (fullest(gpus), _full(max(map(_share, gpus), default=0.0))),
        "W": _plain(or_dash(sum(watts) if watts else None)),
        "°C": _plain(or_dash(max((gpu.celsius for gpu in gpus if gpu.celsius is not None), default=None))),
        "CPU": _plain("-" if cpu is None else f"{cpu:.1f}/{now.cores}"),
        "MEM": (f"{used / total:.0%}", _full(used / total)),
        "RX/TX B/s": _plain("-" if None in traffic else "/".join(size_of(value or 0.0) for value in traffic)),
        "NIC %": _plain("-" if share is None else f"{share:.0%}"),
    }
    if history is not None:
        if busy:
            cells["GPUS"] = (blocks_of(busy[:MOST_GPUS], 100.0), _idle(min(busy), scale) or "green")
            fullest_share = max(map(_share, gpus))
            cells["MEM ▕▏"] = _bar(fullest_share, _full(fullest_share) or "cyan")
        if cpu is not None and now.cores:
            cells["CPU ▕▏"] = _bar(cpu / now.cores, "blue")
        cells["LOAD"] = (sparkline(history.of_host(row.host)[-TREND:], 100.0), "cyan")
    newest = newest_of(row.ranks)
    last = f"{newest.rank}: {newest.last}" if newest else ""
    return Entry(row.host, cells, row.trouble or last)


def rank_entry(row: BoardRow, rank: RankSample, scale: Scale, history: History | None) -> Entry:
    silent = row.now.clock - rank.at if row.now and rank.at and row.state == "running" else 0.0
    step_time = rank.figures.get("step_time")
    cells: dict[str, Cell] = {
        "RANK": _plain(str(rank.rank)),
        "HOST": _plain(row.host),
        "STATE": (row.state, STYLES.get(row.state, "")),
        "QUIET": DASH if silent < QUIET else _silence(silent, scale),
        "STEP": _plain(or_dash(rank.figures.get("step"))),
        "LOSS": _loss(rank.figures.get("loss")),
        "RATE/S": _plain(or_dash(rank.figures.get("rate"))),
        "STEP s": _step_time(step_time, scale),
    }
    gpu = _gpu_of(row, rank)
    if gpu is not None and gpu.busy is not None:
        cells["GPU %"] = (number(gpu.busy), _idle(gpu.busy, scale))
        cells["GPU MEM"] = (fullest([gpu]), _full(_share(gpu)))
    if history is not None and step_time is not None and scale.longest > 0:
        cells["STEP ▕▏"] = _bar(step_time / scale.longest, _step_time(step_time, scale)[1] or "green")
        cells["TREND"] = (sparkline(history.of_rank(rank.rank)[-TREND:], scale.longest), "cyan")
    return Entry(str(rank.rank), cells, row.trouble or rank.last)


def gpu_entries(row: BoardRow, scale: Scale, history: History | None) -> list[Entry]:
    """A row per GPU of the host."""
    entries = []
    for place, gpu in enumerate(row.now.gpus if row.now else ()):
        cells: dict[str, Cell] = {
            "GPU": _plain(str(place)),
            "BUSY": DASH if gpu.busy is None else (f"{gpu.busy:.0f}%", _idle(gpu.busy, scale)),
            "GPU MEM": (fullest([gpu]), _full(_share(gpu))),
            "W": _plain(or_dash(gpu.watts)),
            "°C": _plain(or_dash(gpu.celsius)),
        }
        if history is not None and gpu.busy is not None:
            style = _idle(gpu.busy, scale) or "green"
            cells["BUSY ▕▏"] = (bar(gpu.busy / 100, 2 * BAR), style)
            cells["MEM ▕▏"] = (bar(_share(gpu), 2 * BAR), _full(_share(gpu)) or "cyan")
            cells["LOAD"] = (sparkline(history.of_gpu(row.host, place)[-2 * TREND :], 100.0), "cyan")
        entries.append(Entry(str(place), cells))
    return entries


def lines_of(
    columns: Sequence[Column], entries: Sequence[Entry], width: int, show: Callable[[str], str], marked: str | None
) -> list[Text]:
    """The header and a line per entry. `show`: makes text of a host safe. `marked`: the entry under the cursor."""
    host_width = max([4, *(len(entry.cells["HOST"][0]) for entry in entries if "HOST" in entry.cells)])
    used = [
        column
        for column in columns
        if any(entry.cells.get(column.title, DASH)[0] not in ("", "-") for entry in entries)
    ]
    fitting = _fit(used, host_width, width)
    widths = {column.title: _width_of(column, entries, host_width) for column in fitting}
    free = width - sum(widths.values()) - len(widths)
    has_lines = free >= LAST_LINE_MIN and any(entry.last_line for entry in entries)
    titles = [(_aligned(column.title, widths[column.title], column) + " ", "bold") for column in fitting]
    lines = [Text.assemble(*titles, ("LAST LINE" if has_lines else "", "bold"))]
    for entry in entries:
        parts = []
        for column in fitting:
            text, style = entry.cells.get(column.title, DASH)
            parts.append((_aligned(text, widths[column.title], column) + " ", style))
        if has_lines:
            parts.append((cut(show(entry.last_line), free), ""))
        line = Text.assemble(*parts)
        if entry.key == marked:
            line.stylize("reverse")
        lines.append(line)
    return lines


def _aligned(text: str, width: int, column: Column) -> str:
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.ljust(width) if column.is_text else text.rjust(width)


def _width_of(column: Column, entries: Sequence[Entry], host_width: int) -> int:
    if column.title == "GPUS":
        return max(4, *(len(entry.cells.get(column.title, DASH)[0]) for entry in entries))
    return column.width or host_width


def _fit(columns: Sequence[Column], host_width: int, width: int) -> list[Column]:
    """The columns that have room, and room for a last line before columns that few people need."""
    fitting = list(columns)
    while len(fitting) > 2:
        lowest = max(column.priority for column in fitting)
        needed = sum((column.width or host_width) + 1 for column in fitting)
        if needed + (LAST_LINE_MIN if lowest >= 7 else 0) <= width:
            break
        fitting.remove(next(column for column in reversed(fitting) if column.priority == lowest))
    return fitting


def _gpu_of(row: BoardRow, rank: RankSample) -> GpuUsage | None:
    """The GPU of a rank, where each rank of the host has one: torch programs take that with their local rank."""
    if row.now is None or row.part is None or row.part.first_rank is None or len(row.now.gpus) != row.part.nproc:
        return None
    place = rank.rank - row.part.first_rank
    return row.now.gpus[place] if 0 <= place < len(row.now.gpus) else None


def _plain(text: str) -> Cell:
    return text, ""


def _loss(value: float | None) -> Cell:
    return or_dash(value), "" if value is None or value == value else "bold red"


def _step_time(value: float | None, scale: Scale) -> Cell:
    if value is None or not scale.step_time:
        return _plain(or_dash(value))
    times = value / scale.step_time
    return number(value), "red" if times > VERY_SLOW else "yellow" if times > SLOW else ""


def _silence(seconds: float, scale: Scale) -> Cell:
    return duration(seconds), "yellow" if scale.quiet >= LONG_QUIET else ""


def _idle(busy: float, scale: Scale) -> str:
    return "yellow" if scale.busy is not None and busy < IDLE * scale.busy else ""


def _full(share: float) -> str:
    return "yellow" if share > FULL else ""


def _share(gpu: GpuUsage) -> float:
    return gpu.used / gpu.total if gpu.used is not None and gpu.total else 0.0


def _bar(share: float, style: str) -> Cell:
    return bar(share, BAR), style
