"""The line below the output of a run that is followed on a terminal: how far the run is. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from ..node.serve.figures import figures
from ..output.epochs import Epochs
from ..output.lines import Line
from ..output.pipeline import Stage
from ..output.rates import Rates

REDRAW = 1.0  # s between two drawings without new lines
SILENT = 30.0  # s without a line from any rank until the line says so
SLOW = 1.05  # times the median step time; the slowest rank is named if it takes longer
READ = 200  # of each batch of lines, only so many of the newest are read for figures

ATTEMPT = re.compile(r"ddp-orch: attempt (\d+) on ")
STOPS = re.compile(r"ddp-orch: (?:first failure: |stopping all nodes|asking the ranks for a snapshot)")
WAITS = re.compile(r"ddp-orch: (waiting for .*)")
WITHOUT_HEAD = re.compile(
    r"ddp-orch: no message from the head \((\S+)\) for \d+ s: stopping(; waiting (up to .*) for it to come back)?"
)
NO_MAJORITY = re.compile(
    r"ddp-orch: (?:the head \(\S+\) reaches no majority|no majority of the hosts answers \(silent: (.*?)\)"
    r"(?:: waiting (up to .*) for them)?)"
)
READY = re.compile(r"ddp-orch: ready after \d+ s: ")
ENDS = re.compile(r"ddp-orch: the run (?!waits)")


class RunStatus:
    """What the lines of a run tell about its progress."""

    def __init__(self, ranks: int, began: float) -> None:
        """`began`: when the run started, in the same clock as `now`: seconds, monotonic."""
        self.gpu_use: float | None = None
        """The average of all GPUs, percent; None: unknown."""
        self._ranks = ranks
        self._began = began
        self._attempt = 0
        self._state = "starting"
        self._heard: set[int] = set()  # ranks that have printed a line in this attempt
        self._heard_at = began
        self._newest: dict[str, float] = {}  # step, total and loss, of the newest line that has them
        self._first_step: tuple[float, float] | None = None  # the first step of this attempt, and when it was printed
        self._step_at = began
        self._epochs = Epochs()
        self._bar = ""  # the newest progress bar, if it has no figures
        self._step_times: dict[int, float] = {}
        self._rates: dict[int, tuple[float | None, float]] = {}  # the newest of each rank, with its step
        self._known_rates = Rates()

    def see(self, lines: Sequence[Line], now: float) -> None:
        for number, line in enumerate(lines, 1):
            if line.rank is None:
                self._see_agent(line.text, line.attempt)
            elif line.attempt >= self._attempt:
                if line.attempt > self._attempt:
                    self._begin(line.attempt)
                self._heard.add(line.rank)
                self._heard_at = now
                if READY.match(line.text):
                    self._state = "ready"
                elif self._state == "starting":
                    self._state = "running"
                if len(lines) - number < READ:
                    self._read(line, now)

    def text(self, now: float) -> str:
        """Such as `running 3:12  step 130/1000  ETA 21:20  loss 0.0042  20506/s  slowest: rank 3 (1.2 x median)`."""
        if self._state == "ended":
            return ""
        parts = [f"{self._state} {elapsed(now - self._began)}"]
        if self._attempt > 1:
            parts.append(f"attempt {self._attempt}")
        if self._state == "starting" and self._attempt:
            parts.append(f"first lines of {len(self._heard)} of {self._ranks} ranks")
        if "step" in self._newest:
            total = f"/{self._newest['total']:.0f}" if "total" in self._newest else ""
            parts.append(f"step {self._newest['step']:.0f}{total}{' of this epoch' if self._is_of_epoch() else ''}")
        is_training = self._state in ("running", "ready")
        if is_training and (left := self._time_left()) is not None:
            parts.append(f"ETA {elapsed(max(0.0, left - (now - self._step_at)))}")
        if "loss" in self._newest:
            parts.append(f"loss {self._newest['loss']:.4g}")
        if is_training and self._rates:
            parts.append(self._rate())
        if self.gpu_use is not None and self._state == "running":
            parts.append(f"GPU {self.gpu_use:.0f} %")
        if is_training and (slowest := self._slowest()):
            parts.append(slowest)
        if self._state == "running" and now - self._heard_at >= SILENT:
            parts.append(f"no output for {elapsed(now - self._heard_at)}")
        if self._bar:
            parts.append(self._bar)
        return "  ".join(parts)

    def _see_agent(self, text: str, attempt: int) -> None:
        if not text.startswith("ddp-orch: "):
            return
        if match := ATTEMPT.match(text):
            self._begin(int(match[1]))
        elif STOPS.match(text):
            self._state = "stopping"
        elif match := WAITS.match(text):
            self._state = match[1]
        elif (match := WITHOUT_HEAD.match(text)) and attempt >= self._attempt:  # not of a host that was cut off before
            self._state = f"waiting for {match[1]} to come back ({match[3]})" if match[2] else "stopping"
        elif (match := NO_MAJORITY.match(text)) and attempt >= self._attempt:
            self._state = f"waiting for {match[1]} ({match[2]})" if match[2] else "stopping"
        elif ENDS.match(text):
            self._state = "ended"

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._state = "starting"
        self._heard = set()
        self._newest = {}
        self._first_step = None
        self._epochs.restart()
        self._bar = ""
        self._step_times = {}
        self._rates = {}

    def _read(self, line: Line, now: float) -> None:
        values = figures(line.text)
        self._bar = f"{line.rank}: {line.text.strip()}" if line.redrawn == "state" and not values else ""
        if "step_time" in values and line.rank is not None:
            self._step_times[line.rank] = values["step_time"]
        if "rate" in values and math.isfinite(values["rate"]) and line.rank is not None:
            self._rates[line.rank] = values.get("step"), values["rate"]
        if line.rank is not None:
            self._epochs.see(line.rank, values, line.text)
        if "step" in values:
            if self._first_step is None or values["step"] < self._newest.get("step", 0.0):  # an epoch may count anew
                self._first_step = values["step"], now
            self._step_at = now
        self._newest |= {name: value for name, value in values.items() if math.isfinite(value) or name == "loss"}

    def _time_left(self) -> float | None:
        """Seconds at the newest step until the last one, at the pace of this attempt; None: unknown."""
        if self._first_step is None or "total" not in self._newest or self._is_of_epoch():
            return None
        first, at = self._first_step
        steps = self._newest["step"] - first
        if steps <= 0 or self._step_at <= at:
            return None
        return (self._newest["total"] - self._newest["step"]) * (self._step_at - at) / steps

    def _is_of_epoch(self) -> bool:
        return "total" in self._newest and self._epochs.has(self._newest["total"])

    def _rate(self) -> str:
        """The rate of all ranks, as in `top`."""
        total, is_printed = self._known_rates.total(self._rates.values())
        return f"{short(total)}/s{'' if is_printed or len(self._rates) == 1 else ' in total'}"

    def _slowest(self) -> str:
        """The rank that takes longest for a step, if several ranks print their times."""
        if len(self._step_times) < 2:
            return ""
        rank, longest = max(self._step_times.items(), key=lambda item: item[1])
        median = sorted(self._step_times.values())[(len(self._step_times) - 1) // 2]
        return f"slowest: rank {rank} ({longest / median:.1f} x the median)" if 0 < SLOW * median < longest else ""


class StatusLine(Stage):
    """Passes lines on to a printer, and draws the status below what it prints."""

    def __init__(self, status: RunStatus, show: Callable[[str], object]) -> None:
        """`show`: draws the line; "" removes it."""
        self.printer = Stage()  # calls `clear` before it prints
        self.status = status
        self._show = show
        self._drawn_at = -math.inf

    def show_gpu_use(self, percent: float) -> None:
        """From now on. May be called by another thread."""
        self.status.gpu_use = percent

    @property
    def wake_at(self) -> float:
        return min(self.printer.wake_at, self._drawn_at + REDRAW)

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        self.status.see(lines, now)
        shown = self.printer.push(lines, now)
        if now >= self._drawn_at + REDRAW:
            self._show(self.status.text(now))
            self._drawn_at = now
        return shown

    def flush(self, now: float) -> Sequence[Line]:
        self.clear()
        return self.printer.flush(now)

    def clear(self) -> None:
        self._show("")
        self._drawn_at = -math.inf


def short(value: float) -> str:
    """`20506`, `768k`, `1.23M`."""
    if abs(value) >= 1e5:
        return f"{value / 1e6:.3g}M" if abs(value) >= 999_500 else f"{value / 1e3:.3g}k"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def elapsed(seconds: float) -> str:
    """`0:07`, `3:12`, `1:02:03`."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    rest = f"{int(seconds) % 60:02}"
    return f"{hours}:{minutes % 60:02}:{rest}" if hours else f"{minutes}:{rest}"
