"""`bench`: what more hosts bring: `python -m trainer --bench` on 1, 2, 4, ... of them; a table, a plot, JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..answers.decode import MalformedAnswer, decode
from ..answers.printed import BenchResult
from ..errors import Interrupted, RunFailed, UsageError
from ..output.console import Console, wants_colour
from ..output.lines import Line
from ..output.pipeline import Stage
from ..plan import entrypoint, plan
from . import up
from .context import chosen_inventory

STATUS_EVERY = 1.0  # s
BATCH = 128  # samples a step of a host, if nobody says otherwise


@dataclass(frozen=True, kw_only=True)
class Bench:
    """`bench` as it was asked for."""

    inventory: str | None
    counts: str | None  # of hosts, such as 1,2,4
    batch_per_host: int | None
    strong_scaling: bool  # the batch of all hosts together stays the same
    plot: str
    as_json: bool
    trainer_args: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """What some of the hosts reached together."""

    hosts: int
    ranks: int
    batch_size: int
    samples_per_second: float
    efficiency: float  # against as many times the throughput of the first point
    limit: str  # compute, data or allreduce
    seconds_per_step: dict[str, float]


def bench(wanted: Bench) -> int:
    console = Console(sys.stderr, wants_colour(sys.stderr, os.environ))
    read = chosen_inventory(wanted.inventory)
    if wanted.trainer_args:  # `up` would name run.args for them
        entrypoint.trainer_flags((*read.run.args, *wanted.trainer_args), "arguments after --", read.path)
    names = [host.name for host in plan.order(read) if not host.spare]
    measured: list[tuple[int, BenchResult]] = []
    try:
        for count in host_counts(wanted.counts, len(names)):
            batch = (wanted.batch_per_host or BATCH) * (1 if wanted.strong_scaling else count)
            hosts = f"{count} of {len(names)} hosts" if len(names) > 1 else "1 host"
            console.step(f"{hosts}, {batch} samples per step: about a minute")
            args = (*wanted.trainer_args, f"--batch-size={batch}", "--bench")
            measured.append((count, _measured(read.path, names[:count], args, console)))
    except (KeyboardInterrupt, Interrupted):
        if measured:
            _print(scaling(measured), wanted.as_json)
        raise Interrupted("interrupted") from None
    points = scaling(measured)
    _print(points, wanted.as_json)
    _draw(points, Path(wanted.plot), console)
    return 0


def _print(points: list[Point], as_json: bool) -> None:
    print(json.dumps([asdict(point) for point in points], indent=2) if as_json else table(points))


def host_counts(given: str | None, most: int) -> list[int]:
    """1, 2, 4, ... and all; or those given, such as `1,2,3`."""
    if given is None:
        return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})
    try:
        counts = sorted({int(each) for each in given.split(",")})
    except ValueError as error:
        raise UsageError(f"--counts {given}: expected numbers of hosts with commas between, such as 1,2,4") from error
    if counts[0] < 1 or counts[-1] > most:
        raise UsageError(
            f"--counts {given}: the inventory has only {most} {'host' if most == 1 else 'hosts'}, not counting spares"
        )
    return counts


def scaling(measured: list[tuple[int, BenchResult]]) -> list[Point]:
    base_hosts, base = measured[0]
    base_speed = base.samples_per_second.together / base_hosts
    return [
        Point(
            hosts=hosts,
            ranks=each.world_size,
            batch_size=each.batch_size,
            samples_per_second=each.samples_per_second.together,
            efficiency=each.samples_per_second.together / hosts / base_speed,
            limit=each.limit,
            seconds_per_step=asdict(each.seconds_per_step),
        )
        for hosts, each in measured
    ]


def table(points: list[Point]) -> str:
    lines = [
        f"{'ms per step:':>54}",
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
    """In the place of a printer: keeps the lines, and shows on a terminal how long the run takes and its last line."""

    def __init__(self, console: Console, began: float) -> None:
        """`began`: by the clock of `push`."""
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


def _measured(path: str, names: list[str], args: tuple[str, ...], console: Console) -> BenchResult:
    """The JSON of the trainer's line `bench {...}` in a run on these hosts. Raises RunFailed, Interrupted."""
    wanted = up.Up(
        inventory=path,
        script=(),
        detach=False,
        dry_run=False,
        as_json=True,
        name=None,
        skip_check=False,
        hosts=",".join(names),
        wait=True,
        debug=False,
        env=(),
        show_outputs=False,
        trainer_args=args,
    )
    collector = Collector(console, time.monotonic())
    try:
        code = up.up(wanted, collector)
    finally:
        collector.close()
    if code == Interrupted.exit_code:
        raise Interrupted("interrupted")
    texts = collector.texts
    found = [text.removeprefix("bench ") for text in texts if text.startswith("bench {")]
    if code or not found:
        raise RunFailed("\n".join(["the benchmark did not finish; its last lines:", *texts[-10:]]))
    try:
        return decode(BenchResult, json.loads(found[-1]), "bench")
    except (ValueError, RecursionError, MalformedAnswer) as error:
        raise RunFailed(f"the result of the benchmark is invalid: {error}") from error


def _draw(points: list[Point], path: Path, console: Console) -> None:
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
    share.set(xlabel="hosts", ylabel="scaling efficiency, %", xticks=hosts, ylim=(0, 110))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    console.note(f"plot: {path}")
