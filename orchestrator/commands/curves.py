"""The curves and bars of `top`, and what its samples have shown so far. Pure."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ..answers.recorded import RankSample
from ..hosts import claims
from ..output.epochs import Epochs
from ..output.rates import Rates
from .board_rows import BoardRow, amount, losses_of, number, rates_of

POINTS = 400  # of a curve of the run; the oldest are dropped
ROW_POINTS = 64  # of a host, a GPU or a rank
LINES = 200  # newest lines
MIN_WIDTH = 8  # characters of a curve

_BLOCKS = "▁▂▃▄▅▆▇█"
_FORMS: dict[str, Callable[[float], str]] = {"loss": number, "rate": amount, "GPU %": lambda load: number(round(load))}
_EIGHTHS = " ▏▎▍▌▋▊▉"


class History:
    """The figures of all ranks together, and of each host and rank, from sample to sample."""

    def __init__(self) -> None:
        self.lines: deque[tuple[str, RankSample]] = deque(maxlen=LINES)
        """The newest lines of ranks in the newest attempt that the samples have shown, with the host."""
        self._points: dict[str, deque[float]] = {name: deque(maxlen=POINTS) for name in ("loss", "rate", "GPU %")}
        self._rows: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=ROW_POINTS))
        self._lines_at: dict[int, float] = {}
        self._figures: dict[int, Mapping[str, float]] = {}  # of each rank, as last seen
        self._attempt = 0
        self.epochs = Epochs()
        self.rates = Rates()

    def add(self, rows: Sequence[BoardRow]) -> None:
        """Add the newest samples of all hosts."""
        ranks = [rank for row in rows for rank in row.ranks]
        # without news, such as after the end, a curve would go on as a flat line
        changed = {rank.rank: rank.figures for rank in ranks if self._figures.get(rank.rank) != rank.figures}
        self._figures |= changed
        if changed:
            self._add("loss", _mean(losses_of(ranks)))
            rates = rates_of(ranks)
            self._add("rate", self.rates.total(rates)[0] if rates else None)
        self._add("GPU %", _mean(gpu.busy for row in rows if row.now for gpu in row.now.gpus if gpu.busy is not None))
        for row in rows:
            self._add_row(row, changed)
        parts = [row.part for row in rows if row.part is not None and row.part.node == row.node]
        attempt = claims.state_of_run(parts)[2] if parts else self._attempt
        if attempt > self._attempt:
            self.lines.clear()
            self.epochs.restart()
            self._attempt = attempt
        rows = [row for row in rows if row.part is None or row.part.attempt >= self._attempt]
        epochs_of([rank for row in rows for rank in row.ranks], self.epochs)
        new = [(row.host, rank) for row in rows for rank in row.ranks if rank.at > self._lines_at.get(rank.rank, 0.0)]
        self._lines_at |= {rank.rank: rank.at for _, rank in new}
        self.lines.extend(sorted((pair for pair in new if pair[1].last), key=lambda pair: pair[1].at))

    def curves(self, width: int) -> str:
        """`loss ▇▅▃▂ 0.12   GPU % ▇▇█▇ 97` in at most `width` characters; empty with fewer than two samples."""
        points = {name: values for name, values in self._points.items() if len(values) > 1}
        if not points:
            return ""
        ends = {name: _FORMS[name](values[-1]) for name, values in points.items()}
        texts = sum(len(name) + len(ends[name]) + 5 for name in points) - 3
        room = (width - texts) // len(points)
        if room < MIN_WIDTH:
            return "   ".join(f"{name} {end}" for name, end in ends.items())[:width]
        return "   ".join(
            f"{name} {sparkline(list(values)[-room:], 100.0 if name == 'GPU %' else None)} {ends[name]}"
            for name, values in points.items()
        )

    def of_host(self, host: str) -> list[float]:
        """The mean load of its GPUs, or of its CPUs if it has none, percent."""
        return list(self._rows.get(host, ()))

    def of_gpu(self, host: str, place: int) -> list[float]:
        return list(self._rows.get(f"{host} {place}", ()))

    def of_rank(self, rank: int) -> list[float]:
        """Its step times, seconds."""
        return list(self._rows.get(f"rank {rank}", ()))

    def _add_row(self, row: BoardRow, changed: Collection[int]) -> None:
        if row.now is None:
            return
        cpu = row.rate("cpu")
        load = _mean(gpu.busy for gpu in row.now.gpus if gpu.busy is not None)
        if load is None and cpu is not None and row.now.cores:
            load = 100 * cpu / row.now.cores
        if load is not None:
            self._rows[row.host].append(load)
        for place, gpu in enumerate(row.now.gpus):
            if gpu.busy is not None:
                self._rows[f"{row.host} {place}"].append(gpu.busy)
        for rank in row.ranks:
            if rank.rank in changed and math.isfinite(seconds := rank.figures.get("step_time", math.nan)):
                self._rows[f"rank {rank.rank}"].append(seconds)

    def _add(self, name: str, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._points[name].append(value)


def epochs_of(ranks: Iterable[RankSample], known: Epochs | None = None) -> Epochs:
    """What the samples tell of epochs, added to what is known."""
    epochs = Epochs() if known is None else known
    for rank in ranks:
        epochs.see(rank.rank, rank.figures, rank.last)
    return epochs


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """A block per value. `top`: the scale is from 0 to this; None: from the lowest to the highest value."""
    if not values:
        return ""
    if top is not None:
        return blocks_of(values, top)
    low, high = min(values), max(values)
    return blocks_of([value - low for value in values], high - low)


def blocks_of(values: Sequence[float], top: float) -> str:
    """A block per value, on a scale from 0 to `top`."""
    if top <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[max(0, min(7, int(value / top * 8)))] for value in values)


def bar(share: float, width: int) -> str:
    """A bar of `width` characters, of which this share is filled."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    rest = _EIGHTHS[eighths % 8] if eighths % 8 else ""
    return ("█" * (eighths // 8) + rest).ljust(width)


def _mean(values: Iterable[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
