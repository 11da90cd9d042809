"""`bench`: run `python -m trainer --bench` on 1, 2, 4, ... hosts, and print throughput and scaling; draw a plot."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..answers.decode import MalformedAnswer, decode
from ..answers.printed import BenchResult
from ..errors import Interrupted, RunFailed, UsageError
from ..output.console import Console, wants_colour
from ..output.lines import Line
from ..output.pipeline import Stage
from ..plan import entrypoint, plan
from . import up
from .context import load_inventory
from .up_options import UpOptions

STATUS_EVERY = 1.0  # s
BATCH = 128  # samples per step and host, by default


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of `bench`."""

    inventory: str | None
    counts: str | None  # of hosts, such as 1,2,4
    batch_per_host: int | None
    strong_scaling: bool  # keep the total batch the same for any number of hosts
    plot: str
    as_json: bool
    trainer_args: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """The result of one number of hosts."""

    hosts: int
    ranks: int
    batch_size: int
    samples_per_second: float
    efficiency: float  # throughput per host, relative to the first point
    limit: str  # compute, data or allreduce
    seconds_per_step: dict[str, float]


def bench(options: BenchOptions) -> int:
    console = Console(sys.stderr, wants_colour(sys.stderr, os.environ))
    inventory = load_inventory(options.inventory)
    if options.trainer_args:  # `up` would report errors in them as errors in run.args
        where = "arguments after --"
        options = replace(
            options, trainer_args=entrypoint.expand_trainer_config(options.trainer_args, Path.cwd(), where)
        )
        flags = (*entrypoint.read_trainer_config(inventory), *options.trainer_args)
        entrypoint.trainer_flags(flags, where, inventory.path)
    if not Path(options.plot).parent.is_dir():
        raise UsageError(f"--plot {options.plot}: there is no such folder")
    names = [host.name for host in plan.order(inventory) if host.in_team]
    measured: list[tuple[int, BenchResult]] = []
    try:
        for count in host_counts(options.counts, len(names)):
            batch = (options.batch_per_host or BATCH) * (1 if options.strong_scaling else count)
            hosts = f"{count} of {len(names)} hosts" if len(names) > 1 else "1 host"
            console.step(f"{hosts}, {batch} samples per step: about a minute")
            args = (*options.trainer_args, f"--batch-size={batch}", "--bench")
            measured.append((count, _measure(inventory.path, names[:count], args, console)))
    except (KeyboardInterrupt, Interrupted):
        if measured:
            _print(scaling(measured), options.as_json)
        raise Interrupted("interrupted") from None
    points = scaling(measured)
    _print(points, options.as_json)
    _draw(points, Path(options.plot), _title(options, points[0]), console)
    return 0


def _print(points: list[Point], as_json: bool) -> None:
    print(json.dumps([asdict(point) for point in points], indent=2) if as_json else table(points))


def host_counts(text: str | None, total: int) -> list[int]:
    """The numbers of hosts to measure: those in `text`, such as `1,2,3`; by default 1, 2, 4, ... and all."""
    if text is None:
        return sorted({min(2**power, total) for power in range(total.bit_length() + 1)})
    try:
        counts = sorted({int(count) for count in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--counts {text}: expected numbers of hosts with commas between, such as 1,2,4") from error
    if counts[0] < 1 or counts[-1] > total:
        raise UsageError(
            f"--counts {text}: the inventory has only {total} {'host' if total == 1 else 'hosts'}, not counting spares"
        )
    return counts


def _title(options: BenchOptions, first: Point) -> str:
    model = shlex.join(options.trainer_args) or "bundled model"
    batch = first.batch_size if options.strong_scaling else first.batch_size // first.hosts
    of = "in total" if options.strong_scaling else "per host"
    return f"ddp-orch bench, {time.strftime('%Y-%m-%d')}: {model}, {batch} samples {of} and step"


def scaling(measured: list[tuple[int, BenchResult]]) -> list[Point]:
    base_hosts, base = measured[0]
    base_speed = base.samples_per_second.together / base_hosts
    return [
        Point(
            hosts=hosts,
            ranks=result.world_size,
            batch_size=result.batch_size,
            samples_per_second=result.samples_per_second.together,
            efficiency=result.samples_per_second.together / hosts / base_speed,
            limit=result.limit,
            seconds_per_step=asdict(result.seconds_per_step),
        )
        for hosts, result in measured
    ]


def table(points: list[Point]) -> str:
    lines = [
        "                                     ----------- ms per step -----------",
        "hosts ranks  batch samples/s scaling together compute   data allreduce limit",
    ]
    for point in points:
        step = {name: 1000 * seconds for name, seconds in point.seconds_per_step.items()}
        lines.append(
            f"{point.hosts:5} {point.ranks:5} {point.batch_size:6} {point.samples_per_second:9.1f} "
            f"{100 * point.efficiency:5.1f} % {step['together']:8.2f} {step['compute']:7.2f} "
            f"{step['data']:6.2f} {step['allreduce']:9.2f} {point.limit}"
        )
    return "\n".join(lines)


class Collector(Stage):
    """Keeps the lines of a run instead of printing them. Shows the elapsed time and the last line on a terminal."""

    def __init__(self, console: Console, began: float) -> None:
        """`began`: on the clock of `push`."""
        self.texts: list[str] = []
        self._console = console
        self._began = began
        self._status_at = began + STATUS_EVERY

    @property
    def wake_at(self) -> float:
        return self._status_at

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        self.texts += [line.text for line in lines]
        if now >= self._status_at:
            self._status_at = now + STATUS_EVERY
            last = self.texts[-1] if self.texts else "starting"
            self._console.status(f"{now - self._began:.0f} s  {last}")
        return ()

    def flush(self, now: float) -> Sequence[Line]:
        self.close()
        return ()

    def close(self) -> None:
        self._console.status("")


def _measure(path: str, names: list[str], args: tuple[str, ...], console: Console) -> BenchResult:
    """Run the trainer on these hosts, and decode its line `bench {...}`. Raises RunFailed, Interrupted."""
    options = UpOptions(
        inventory=path,
        script=(),
        as_json=True,
        hosts=",".join(names),
        wait=True,
        show_outputs=False,
        trainer_args=args,
    )
    collector = Collector(console, time.monotonic())
    try:
        code = up.up(options, collector, is_measurement=True)
    finally:
        collector.close()
    if code == Interrupted.exit_code:
        raise Interrupted("interrupted")
    texts = collector.texts
    results = [text.removeprefix("bench ") for text in texts if text.startswith("bench {")]
    if code or not results:
        raise RunFailed("\n".join(["the benchmark did not finish. Its last lines:", *texts[-10:]]))
    try:
        return decode(BenchResult, json.loads(results[-1]), "bench")
    except (ValueError, RecursionError, MalformedAnswer) as error:
        raise RunFailed(f"the result of the benchmark is invalid: {error}") from error


def _draw(points: list[Point], path: Path, title: str, console: Console) -> None:
    try:
        import matplotlib
    except ImportError:
        console.note("no plot was drawn: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    hosts = [point.hosts for point in points]
    first = points[0]
    figure, (speed, share) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    ideal = [first.samples_per_second / first.hosts * count for count in hosts]
    speed.plot(hosts, ideal, "--", color="grey", label="ideal")
    speed.plot(hosts, [point.samples_per_second for point in points], "o-", label="measured")
    speed.set(xlabel="hosts", ylabel="samples/s", xticks=hosts, ylim=(0, None))
    speed.legend()
    share.plot(hosts, [100 * point.efficiency for point in points], "o-")
    share.set(xlabel="hosts", ylabel="scaling efficiency, %", xticks=hosts, ylim=(0, 115))
    for point in points:
        text = {"textcoords": "offset points", "xytext": (0, 6), "ha": "center"}
        speed.annotate(f"{point.samples_per_second:.0f}", (point.hosts, point.samples_per_second), **text)
        share.annotate(f"{100 * point.efficiency:.0f}", (point.hosts, 100 * point.efficiency), **text)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
        console.note(f"plot: {path}")
    except (OSError, ValueError) as error:  # ValueError: an unknown format
        console.warning(f"no plot was drawn: {path}: {getattr(error, 'strerror', None) or error}")
    pyplot.close(figure)
