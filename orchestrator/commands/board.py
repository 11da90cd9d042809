"""Draw the board of `top`: a row per host, as many columns and rows as fit the screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..answers.recorded import GpuUsage, RankSample, Sample
from ..answers.runs import FirstFailure, Part
from ..hosts import claims
from ..output.console import fold, number_of
from ..output.folding import ranges
from ..output.lines import Mask, presentable
from ..output.terminal import one_line

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

QUIET = 15.0  # s without a line from a rank until the board shows its silence
SLOW = 1.05  # times the median step time; the slowest rank is named if it takes longer


@dataclass(frozen=True)
class BoardRow:
    """One host: its newest sample and the one before, or why there is none."""

    host: str
    now: Sample | None = None
    previous: Sample | None = None
    trouble: str = ""
    """Why the host did not answer last time."""
    node: int | None = None
    """Its node in the run; None if hosts contradict each other about it."""

    @property
    def part(self) -> Part | None:
        """The host's part of the run."""
        return self.now.run if self.now else None

    @property
    def state(self) -> str:
        if self.trouble:
            return "no answer"
        if self.now is None:
            return "asking"
        return claims.state_of_host(self.part) if self.part else "no such run"

    @property
    def ranks(self) -> Sequence[RankSample]:
        return () if self.now is None else self.now.ranks

    def figure(self, name: str) -> float | None:
        """A figure of the slowest rank: the lowest step and rate, the longest step time. Of the loss, the highest."""
        values = _losses(self.ranks) if name == "loss" else _figures(self.ranks, name)
        return None if not values else _extremes(values)[name not in ("step", "rate")]

    def quiet(self) -> float | None:
        """Seconds since any rank of the host printed a line, if that is long. Often only one rank prints."""
        if self.now is None or self.state != "running":
            return None
        silent = min((self.now.clock - rank.at for rank in self.ranks if rank.at), default=0.0)
        return silent if silent >= QUIET else None

    def rate(self, of: Literal["cpu", "received", "sent"]) -> float | None:
        """`cpu` in cores; `received` and `sent` in bytes per second over all interfaces."""
        if self.now is None or self.previous is None:
            return None
        seconds = self.now.clock - self.previous.clock
        if seconds <= 0:
            return None
        if of == "cpu":
            busy, whole = (new - old for new, old in zip(self.now.cpu, self.previous.cpu, strict=True))
            return float(busy / whole * self.now.cores) if whole > 0 and self.now.cores else None
        old = {nic.name: nic.counted(of) for nic in self.previous.nics}
        return sum(max(0, nic.counted(of) - old.get(nic.name, nic.counted(of))) for nic in self.now.nics) / seconds

    def line_share(self) -> float | None:
        """How much of its speed the busiest interface uses, 0 to 1; None if no interface reports its speed."""
        if self.now is None or self.previous is None:
            return None
        seconds = self.now.clock - self.previous.clock
        old = {nic.name: nic for nic in self.previous.nics}
        shares = [
            max(nic.received - old[nic.name].received, nic.sent - old[nic.name].sent) / seconds / (nic.mbit * 125_000)
            for nic in self.now.nics
            if nic.mbit and nic.name in old and seconds > 0
        ]
        return max(shares, default=None)


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


def render(run_id: str, rows: Sequence[BoardRow], width: int, height: int, mask: Mask, keys: str) -> RenderableType:
    """Draw the whole screen. If not all hosts fit, failed and silent ones come first, and one line names the rest."""
    with_run = [row for row in rows if row.part]
    lines: list[RenderableType] = [_title(run_id, rows), _training(with_run)]
    room = max(2, height - len(lines) - 2 - bool(keys))
    first_failure = _first_failure(rows)
    culprit = first_failure.host if first_failure else None
    ordered = sorted(rows, key=lambda row: _sort_key(row, culprit)) if len(rows) > room else list(rows)
    shown, rest = (ordered, []) if len(rows) <= room else (ordered[: room - 1], ordered[room - 1 :])
    lines.append(_table(shown, width, mask))
    if rest:
        states = sorted({row.state for row in rest})
        lines.append(Text(f"{len(rest)} more: {fold(row.host for row in rest)} ({', '.join(states)})", style="dim"))
    lines.append(_footer(rows, mask))
    if keys:
        lines.append(Text(keys, style="dim"))
    for line in lines:
        if isinstance(line, Text):
            line.truncate(width, overflow="ellipsis")
    return Group(*lines)


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
        values = _losses(samples) if name == "loss" else _figures(samples, name)
        if values:
            low, high = map(_number, _extremes(values))
            words[name] = form.format(low if low == high else f"{low}..{high}")
    rates = _figures(samples, "rate")
    if len(rates) > 1:
        # equal rates may be one rate of all ranks together, which each rank prints
        same = min(rates) == max(rates)
        words["rate"] += f" on each of {len(rates)} ranks" if same else f", {_number(sum(rates))}/s in total"
    timed = sorted(
        (rank.figures["step_time"], rank.rank, row.host) for row, rank in pairs if "step_time" in rank.figures
    )
    if timed and timed[-1][0] > SLOW * timed[len(timed) // 2][0]:
        words["step_time"] += f"  slowest rank {timed[-1][1]} ({timed[-1][2]})"
    return Text("  ".join(words.values()) or "no step or loss in the ranks' last lines")


def _table(rows: Sequence[BoardRow], width: int, mask: Mask) -> Table:
    host_width = max([4, *(len(row.host) for row in rows)])
    texts = [_cells(row) for row in rows]
    used = [column for column in COLUMNS if any(text.get(column.title, "") not in ("", "-") for text in texts)]
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
    for row, text in zip(rows, texts, strict=True):
        cells = [Text(text.get(column.title, "-")) for column in columns]
        cells[[column.title for column in columns].index("STATE")].stylize(STYLES.get(text["STATE"], ""))
        if free_width >= LAST_LINE_MIN:
            cells.append(Text(_show(_last_line(row), mask)))
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
        "QUIET": "-" if (quiet := row.quiet()) is None else _duration(quiet),
        "STEP": _or_dash(row.figure("step")),
        "LOSS": _or_dash(row.figure("loss")),
        "RATE/S": _or_dash(row.figure("rate")),
        "STEP s": _or_dash(row.figure("step_time")),
        "GPU %": _span([gpu.busy for gpu in gpus]),
        "GPU MEM": _gib(gpus),
        "W": _or_dash(sum(watts) if (watts := [gpu.watts for gpu in gpus if gpu.watts is not None]) else None),
        "°C": _or_dash(max((gpu.celsius for gpu in gpus if gpu.celsius is not None), default=None)),
        "CPU": "-" if cpu is None else f"{cpu:.1f}/{row.now.cores}",
        "MEM": f"{memory_used / memory_total:.0%}",
        "NET RX/TX": "-" if None in traffic else "/".join(_bytes(value or 0.0) for value in traffic),
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


def _figures(ranks: Sequence[RankSample], name: str) -> list[float]:
    return [rank.figures[name] for rank in ranks if name in rank.figures]


def _losses(ranks: Sequence[RankSample]) -> list[float]:
    """Losses of the ranks at the highest step, because losses of different steps differ. Also losses that are nan."""
    farthest = max(_figures(ranks, "step"), default=None)
    losses = [(rank.figures["loss"], rank.figures.get("step")) for rank in ranks if "loss" in rank.figures]
    return [loss for loss, step in losses if step == farthest or loss != loss]


def _show(text: str, mask: Mask) -> str:
    return one_line(presentable(text, False, mask))


def _extremes(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest value; nan if any value is nan."""
    nan = next((value for value in values if value != value), None)
    return (min(values), max(values)) if nan is None else (nan, nan)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 600 else f"{seconds / 60:.0f}m"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else _number(value)


def _number(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _span(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    return _number(known[0]) if known[0] == known[-1] else f"{_number(known[0])}-{_number(known[-1])}"


def _gib(gpus: Sequence[GpuUsage]) -> str:
    """Memory of the fullest GPU, which is the first to run out of it."""
    usages = [(gpu.used / gpu.total, gpu.used, gpu.total) for gpu in gpus if gpu.used is not None and gpu.total]
    if not usages:
        return "-"
    _, used, total = max(usages, key=lambda usage: usage[0])
    return f"{used / 2**30:.0f}/{total / 2**30:.0f}G"


def _bytes(value: float) -> str:
    for unit in ("", "K", "M"):
        if value < 1000:
            return f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.1f}G"
