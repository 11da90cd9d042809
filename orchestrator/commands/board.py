"""What `top` shows: samples of all hosts in, a table that fits the screen out. Pure."""

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

FINE = ("running", "succeeded")
GRAVE = ("failed", "lost", "no answer", "no such run")
STYLES = {
    "no answer": "bold red",
    "failed": "bold red",
    "lost": "bold red",
    "killed": "red",
    "stopping": "yellow",
    "restarting": "yellow",
}
LAST_LINE_LEAST = 16  # characters of a last line that are worth a column

QUIET = 15.0  # s without a line of a rank, from which its silence is told
SLOW = 1.05  # times the median step time, from which a rank is named as slow


@dataclass(frozen=True)
class HostView:
    """What is known of one host: its newest sample and the one before, or why there is none."""

    host: str
    now: Sample | None = None
    before: Sample | None = None
    trouble: str = ""
    """Why it cannot be asked at the moment."""
    node: int | None = None
    """Which node it is; None where hosts contradict each other."""

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
        """Of the host's ranks the slowest one: the least step and rate, the longest step time; the highest loss."""
        known = _losses(self.ranks) if name == "loss" else _figures(self.ranks, name)
        return None if not known else _extremes(known)[name not in ("step", "rate")]

    def quiet(self) -> float | None:
        """Seconds since any rank of the host has printed a line, where that is long. (Often only one speaks.)"""
        if self.now is None or self.state != "running":
            return None
        silent = min((self.now.clock - rank.at for rank in self.ranks if rank.at), default=0.0)
        return silent if silent >= QUIET else None

    def rate(self, of: Literal["cpu", "received", "sent"]) -> float | None:
        """`cpu` in cores; `received` and `sent` in bytes a second, of all interfaces."""
        if self.now is None or self.before is None:
            return None
        seconds = self.now.clock - self.before.clock
        if seconds <= 0:
            return None
        if of == "cpu":
            busy, whole = (new - old for new, old in zip(self.now.cpu, self.before.cpu, strict=True))
            return float(busy / whole * self.now.cores) if whole > 0 and self.now.cores else None
        old = {nic.name: nic.counted(of) for nic in self.before.nics}
        return sum(max(0, nic.counted(of) - old.get(nic.name, nic.counted(of))) for nic in self.now.nics) / seconds

    def line_share(self) -> float | None:
        """The busiest interface's share of its speed, 0 to 1; None where no speed is told."""
        if self.now is None or self.before is None:
            return None
        seconds = self.now.clock - self.before.clock
        old = {nic.name: nic for nic in self.before.nics}
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
    rank: int
    """Which columns are left out first where there is no room: those of the highest rank."""


COLUMNS = (
    _Column("HOST", 0, 0),
    _Column("RANKS", 7, 1),
    _Column("STATE", 11, 0),
    _Column("SILENT", 6, 0),
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


def render(run_id: str, seen: Sequence[HostView], width: int, height: int, mask: Mask, keys: str) -> RenderableType:
    """The whole screen. Where not all hosts have room, those in trouble come first and the others are one line."""
    known = [one for one in seen if one.part]
    lines: list[RenderableType] = [_title(run_id, seen), _training(known)]
    room = max(2, height - len(lines) - 2 - bool(keys))
    first_failure = _first_failure(seen)
    culprit = first_failure.host if first_failure else None
    ordered = sorted(seen, key=lambda one: _trouble(one, culprit)) if len(seen) > room else list(seen)
    shown, rest = (ordered, []) if len(seen) <= room else (ordered[: room - 1], ordered[room - 1 :])
    lines.append(_table(shown, width, mask))
    if rest:
        states = sorted({one.state for one in rest})
        lines.append(Text(f"{len(rest)} more: {fold(one.host for one in rest)} ({', '.join(states)})", style="dim"))
    lines.append(_last_word(seen, mask))
    if keys:
        lines.append(Text(keys, style="dim"))
    for line in lines:
        if isinstance(line, Text):
            line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _trouble(one: HostView, culprit: str | None) -> tuple[int, float]:
    """The first to fail, those that fail or are silent, those that only stop because of it; then who is behind."""
    step = one.figure("step")
    grave = 0 if one.host == culprit else 1 if one.state in GRAVE else 3 if one.state in FINE else 2
    return grave, float("inf") if step is None else step


def _first_failure(seen: Sequence[HostView]) -> FirstFailure | None:
    nodes = {one.host: one.node for one in seen if one.node is not None}
    verdict = claims.verdict_of({one.host: one.part for one in seen if one.part}, nodes)
    return verdict.first_failure if verdict else None


def _title(run_id: str, seen: Sequence[HostView]) -> Text:
    believed = sorted((one.node, one.host) for one in seen if one.node is not None and one.part)
    part = next((one.part for one in seen if believed and one.host == believed[0][1]), None)
    silent = sum(bool(one.trouble) for one in seen)
    state = part.state if part else "asking"
    ranks = sum(len(one.ranks) for one in seen)
    name = f" ({part.name})" if part and part.name != run_id else ""
    text = Text.assemble((f"{run_id}{name}", "bold"), "  ", (state, STYLES.get(state, "green")))
    if silent:
        text.append(f"  {silent} no answer", style="bold red")
    counted = f"{number_of(len(seen), 'host')}, {number_of(ranks, 'rank')}"
    text.append(f"  attempt {part.attempt if part else '?'}  {counted}")
    return text


def _training(seen: Sequence[HostView]) -> Text:
    ranks = [(one, rank) for one in seen for rank in one.ranks]
    every = [rank for _, rank in ranks]
    words = {}
    for name, form in (("step", "step {}"), ("loss", "loss {}"), ("step_time", "{} s/step"), ("rate", "{}/s")):
        known = _losses(every) if name == "loss" else _figures(every, name)
        if known:
            low, high = map(_number, _extremes(known))
            words[name] = form.format(low if low == high else f"{low}..{high}")
    rates = _figures(every, "rate")
    if len(rates) > 1:
        # equal rates may be the one of all ranks, which each prints
        same = min(rates) == max(rates)
        words["rate"] += f" on each of {len(rates)} ranks" if same else f", {_number(sum(rates))}/s in total"
    timed = sorted(
        (rank.figures["step_time"], rank.rank, one.host) for one, rank in ranks if "step_time" in rank.figures
    )
    if timed and timed[-1][0] > SLOW * timed[len(timed) // 2][0]:
        words["step_time"] += f"  slowest rank {timed[-1][1]} ({timed[-1][2]})"
    return Text("  ".join(words.values()) or "no step or loss in the ranks' last lines")


def _table(seen: Sequence[HostView], width: int, mask: Mask) -> Table:
    host_width = max([4, *(len(one.host) for one in seen)])
    rows = [_cells(one) for one in seen]
    useful = [column for column in COLUMNS if any(row.get(column.title, "") not in ("", "-") for row in rows)]
    left = width - _width(useful, host_width)
    while left < 0 and len(useful) > 2:
        last = max(column.rank for column in useful)
        useful.remove(next(column for column in reversed(useful) if column.rank == last))
        left = width - _width(useful, host_width)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in useful:
        text = column.title in ("HOST", "STATE", "RANKS")
        table.add_column(
            column.title,
            width=column.width or host_width,
            justify="left" if text else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    if left >= LAST_LINE_LEAST:
        table.add_column("LAST LINE", width=left - 1, no_wrap=True, overflow="ellipsis")
    for one, row in zip(seen, rows, strict=True):
        cells = [Text(row.get(column.title, "-")) for column in useful]
        cells[[column.title for column in useful].index("STATE")].stylize(STYLES.get(row["STATE"], ""))
        if left >= LAST_LINE_LEAST:
            cells.append(Text(_shown(_last(one), mask)))
        table.add_row(*cells)
    return table


def _width(columns: Sequence[_Column], host_width: int) -> int:
    return sum((column.width or host_width) + 1 for column in columns)


def _cells(one: HostView) -> dict[str, str]:
    cells = {"HOST": one.host, "STATE": one.state}
    if one.now is None:
        return cells
    gpus = one.now.gpus
    ranks = sorted(rank.rank for rank in one.ranks)
    used, there = one.now.memory
    net = [one.rate("received"), one.rate("sent")]
    share = one.line_share()
    cpu = one.rate("cpu")
    return {
        **cells,
        "RANKS": ranges(ranks) or "-",
        "SILENT": "-" if (quiet := one.quiet()) is None else _duration(quiet),
        "STEP": _or_dash(one.figure("step")),
        "LOSS": _or_dash(one.figure("loss")),
        "RATE/S": _or_dash(one.figure("rate")),
        "STEP s": _or_dash(one.figure("step_time")),
        "GPU %": _span([gpu.busy for gpu in gpus]),
        "GPU MEM": _gib(gpus),
        "W": _or_dash(sum(watts) if (watts := [gpu.watts for gpu in gpus if gpu.watts is not None]) else None),
        "°C": _or_dash(max((gpu.celsius for gpu in gpus if gpu.celsius is not None), default=None)),
        "CPU": "-" if cpu is None else f"{cpu:.1f}/{one.now.cores}",
        "MEM": f"{used / there:.0%}",
        "NET RX/TX": "-" if None in net else "/".join(_bytes(value or 0.0) for value in net),
        "NIC %": "-" if share is None else f"{share:.0%}",
    }


def _last(one: HostView) -> str:
    """What the host said last, or why it says nothing."""
    if one.trouble:
        return one.trouble
    newest = max(one.ranks, key=lambda rank: rank.at, default=None)
    return f"{newest.rank}: {newest.last}" if newest and newest.last else ""


def _last_word(seen: Sequence[HostView], mask: Mask) -> Text:
    """The failure, if there is one; else the newest line of all."""
    first = _first_failure(seen)
    if first:
        said = f" ({first.said})" if first.said else ""
        text = f"first failure: {first.host}: {first.what}{said}"
        return Text(_shown(text, mask), style="bold red")
    newest = max(
        ((rank.at, one.host, rank) for one in seen for rank in one.ranks), key=lambda found: found[0], default=None
    )
    if newest is None or not newest[2].last:
        return Text("")
    return Text(_shown(f"{newest[1]}:{newest[2].rank} | {newest[2].last}", mask), style="dim")


def _figures(ranks: Sequence[RankSample], name: str) -> list[float]:
    return [rank.figures[name] for rank in ranks if name in rank.figures]


def _losses(ranks: Sequence[RankSample]) -> list[float]:
    """Those of the ranks that are farthest, as losses of different steps differ; and those that are no number."""
    farthest = max(_figures(ranks, "step"), default=None)
    figures = [rank.figures for rank in ranks if "loss" in rank.figures]
    return [one["loss"] for one in figures if one.get("step") == farthest or one["loss"] != one["loss"]]


def _shown(text: str, mask: Mask) -> str:
    return one_line(presentable(text, False, mask))


def _extremes(values: Sequence[float]) -> tuple[float, float]:
    """The least and the most; what is no number any more counts over both."""
    broken = [value for value in values if value != value]
    return (broken[0], broken[0]) if broken else (min(values), max(values))


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
    """The fullest GPU: it is the one that runs out of memory."""
    known = [(gpu.used / gpu.total, gpu.used, gpu.total) for gpu in gpus if gpu.used is not None and gpu.total]
    if not known:
        return "-"
    _, used, total = max(known, key=lambda one: one[0])
    return f"{used / 2**30:.0f}/{total / 2**30:.0f}G"


def _bytes(value: float) -> str:
    for unit in ("", "K", "M"):
        if value < 1000:
            return f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.1f}G"
