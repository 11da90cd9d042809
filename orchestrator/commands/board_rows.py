"""The rows of the board of `top`, and how it writes figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..answers.recorded import GpuUsage, RankSample, Sample
from ..answers.runs import Part
from ..hosts import claims
from ..output.harmless import is_harmless

QUIET = 15.0  # s without a line from a rank until the board shows its silence

APART = 2  # steps that ranks of one training may be apart


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
        return _state_or_role(self.part) if self.part else "no such run"

    @property
    def ranks(self) -> Sequence[RankSample]:
        has_none = self.part is not None and self.part.node_rank is None
        return () if self.now is None or has_none else self.now.ranks

    def figure(self, name: str) -> float | None:
        """A figure of the slowest rank: the lowest step and rate, the longest step time. Of the loss, the highest."""
        values = losses_of(self.ranks) if name == "loss" else figures_of(self.ranks, name)
        return None if not values else extremes(values)[name not in ("step", "rate")]

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


def _state_or_role(part: Part) -> str:
    """The role of a host that has no ranks in a run that goes on, or else its state."""
    if part.has_left:
        return "left"
    if part.unfinished and part.is_witness:
        return "witness"
    return "spare" if part.unfinished and part.node_rank is None else claims.state_of_host(part)


def without_old_places(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """The rows without ranks where a host knows only an attempt before that of the head, or not that it was drained."""
    known = {row.host: row.part for row in rows if row.part and row.node is not None}
    parts = claims.without_old_places(claims.with_drained(known))
    return [
        replace(row, now=replace(row.now, run=parts[row.host])) if row.now and row.host in parts else row
        for row in rows
    ]


def without_old_steps(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """The rows without steps that ranks have printed once, such as `resume at step 15`, and that others have passed.

    Ranks that train together are never more than a step or two apart.
    """
    steps = [
        (row.now.clock - rank.at, rank.figures["step"])
        for row in rows
        if row.now
        for rank in row.ranks
        if "step" in rank.figures
    ]

    def is_old(now: Sample, rank: RankSample) -> bool:
        if not {"step"} <= rank.figures.keys() <= {"step", "total"}:
            return False
        age, step = now.clock - rank.at, rank.figures["step"]
        return any(other_age + QUIET <= age and other > step + APART for other_age, other in steps)

    kept = []
    for row in rows:
        if row.now:
            ranks = tuple(replace(rank, figures={}) if is_old(row.now, rank) else rank for rank in row.now.ranks)
            row = replace(row, now=replace(row.now, ranks=ranks))
        kept.append(row)
    return kept


def without_harmless(sample: Sample) -> Sample:
    """The sample without last lines that `logs` would hide."""
    ranks = tuple(replace(rank, last="") if is_harmless(rank.last) else rank for rank in sample.ranks)
    return replace(sample, ranks=ranks)


def newest_of(ranks: Sequence[RankSample]) -> RankSample | None:
    """The rank whose line is the newest."""
    return max((rank for rank in ranks if rank.last), key=lambda rank: rank.at, default=None)


def figures_of(ranks: Sequence[RankSample], name: str) -> list[float]:
    return [rank.figures[name] for rank in ranks if name in rank.figures]


def rates_of(ranks: Sequence[RankSample]) -> list[tuple[float | None, float]]:
    """The rates of the ranks that print one, with the steps."""
    return [(rank.figures.get("step"), rank.figures["rate"]) for rank in ranks if "rate" in rank.figures]


def losses_of(ranks: Sequence[RankSample]) -> list[float]:
    """Losses of the ranks at the highest step, because losses of different steps differ. Also losses that are nan."""
    farthest = max(figures_of(ranks, "step"), default=None)
    losses = [(rank.figures["loss"], rank.figures.get("step")) for rank in ranks if "loss" in rank.figures]
    return [loss for loss, step in losses if step == farthest or loss != loss]


def extremes(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest value; nan if any value is nan."""
    nan = next((value for value in values if value != value), None)
    return (min(values), max(values)) if nan is None else (nan, nan)


def duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 600 else f"{seconds / 60:.0f}m"


def clock(seconds: float) -> str:
    """`3:12`, `2:13:00`, `3d 04:00`."""
    minutes, hours = int(seconds) // 60 % 60, int(seconds) // 3600
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{int(seconds) % 60:02}" if hours else f"{minutes}:{int(seconds) % 60:02}"


def or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)


def number(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def amount(value: float) -> str:
    """As `number`, but `768k` and `6.064M`: nobody needs all digits of a rate."""
    if value != value or abs(value) < 1e5 or abs(value) == float("inf"):
        return number(value)
    return f"{value / 1e6:.4g}M" if abs(value) >= 1e6 else f"{value / 1e3:.4g}k"


def span(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    return number(known[0]) if known[0] == known[-1] else f"{number(known[0])}-{number(known[-1])}"


def fullest(gpus: Sequence[GpuUsage]) -> str:
    """Memory of the fullest GPU, which is the first to run out of it."""
    usages = [(gpu.used / gpu.total, gpu.used, gpu.total) for gpu in gpus if gpu.used is not None and gpu.total]
    if not usages:
        return "-"
    _, used, total = max(usages, key=lambda usage: usage[0])
    return f"{used / 2**30:.0f}/{total / 2**30:.0f}G"


def size_of(value: float) -> str:
    for unit in ("", "K", "M"):
        if value < 1000:
            return f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.1f}G"
