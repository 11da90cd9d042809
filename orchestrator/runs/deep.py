"""`check --deep`: a short run on the hosts themselves, with their torch, and what its figures say."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..answers.decode import MalformedAnswer, decode
from ..answers.printed import AllReduce, DeepFigure, Product
from ..checks.findings import Findings
from ..errors import OrchError
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..inventory.model import Inventory
from ..output.finding import Finding
from ..output.lines import Line
from ..output.pipeline import Stage
from ..plan import plan
from ..plan import snapshot as ship
from ..plan.plan import Plan
from ..ui.progress import Silent
from . import ending, launch
from .follow import LogFilter, View
from .launch import LaunchContext

SCRIPT = Path(__file__).parent / "payload" / "deep.py"
MARKER = "ddp-orch-deep: "
SLOWER = 3  # times less than the median of all ranks


@dataclass(frozen=True)
class Figure:
    """What a rank has measured."""

    host: str
    measured: AllReduce | Product

    def as_dict(self) -> dict[str, Any]:
        return {"host": self.host, **asdict(self.measured)}


@dataclass(frozen=True)
class Result:
    """What the run measured."""

    figures: tuple[Figure, ...]
    failure: str
    """Why the run failed; empty when it did not."""
    failed_on: tuple[str, ...]
    last_lines: tuple[str, ...]
    """Of the hosts where it failed, on stderr."""


def run(read: Inventory, run_id: str, fleet: Fleet, around: LaunchContext) -> Result:
    """Start the run, and wait for its end. The inventory's launcher and environment, one attempt."""
    snapshot = ship.snapshot(SCRIPT, (str(SCRIPT),), SCRIPT.parent)
    assert snapshot is not None  # as something is to be sent
    code = plan.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), len(snapshot.files), snapshot.size)
    hosts = tuple(replace(host, workdir=None) for host in read.hosts)
    once = replace(read, hosts=hosts, run=replace(read.run, max_restarts=0, secrets=()))
    made = plan.make(once, run_id=run_id, name=run_id, command=("-u", SCRIPT.name), code=code, env={}, debug=False)
    everybody = tuple(host.name for host in hosts)
    try:
        resolved = launch.launch(made, snapshot, fleet, around)
    except OrchError as error:
        return Result((), str(error), everybody, ())
    return _watch(resolved, fleet, around)


def _watch(resolved: Plan, fleet: Fleet, around: LaunchContext) -> Result:
    hosts = [node.host for node in resolved.nodes]
    progress = fleet.progress
    output = _Output(progress)
    ranks = claims.ranks_of_plan(resolved)
    view = View(resolved.run_id, hosts, LogFilter(follow=True), fleet, around.warn, ranks=ranks)
    try:
        with progress.of([host.name for host in hosts]):
            for host in hosts:
                progress.at(host.name, "importing torch")
            view.run(output)
    except KeyboardInterrupt:
        ending.kill(fleet, hosts, ending.KillTargets(runs=(resolved.run_id,)), grace=0.0, by="Ctrl-C")
        raise
    parts = {host: outcome.run for host, outcome in view.outcomes.items() if outcome.run}
    verdict = claims.verdict_of(parts, {host.name: node for node, host in enumerate(hosts)})
    first = verdict.first_failure if verdict else None
    if verdict is not None and verdict.state == "succeeded":
        return Result(tuple(output.figures), "", (), ())
    failed_on = (first.host,) if first else tuple(node.host.name for node in resolved.nodes)
    last = tuple(text for host, text in output.errors if host in failed_on)[-5:]
    return Result(tuple(output.figures), first.what if first else "no host tells why", failed_on, last)


class _Output(Stage):
    """Keeps the figures that the payload prints, and what else comes on stderr; shows the progress."""

    def __init__(self, progress: Silent) -> None:
        self.figures: list[Figure] = []
        self.errors: list[tuple[str, str]] = []
        self._progress = progress
        self._tick_at = -math.inf

    @property
    def wake_at(self) -> float:
        return self._tick_at

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for line in lines:
            _, marker, text = line.text.partition(MARKER)
            if marker and (figure := _figure(text)) is not None:
                self.figures.append(Figure(line.host, figure))
                self._progress.at(line.host, figure.what.replace("_", " "))
            elif line.stream == "stderr":
                self.errors.append((line.host, line.text))
        pause = self._progress.tick()
        self._tick_at = math.inf if pause is None else now + pause
        return ()


def _figure(text: str) -> AllReduce | Product | None:
    """A line of the payload; None where a host made it up."""
    try:
        return decode(DeepFigure, {"figure": json.loads(text)}, "deep").figure
    except (ValueError, RecursionError, MalformedAnswer):
        return None


def judge(result: Result) -> tuple[Finding, ...]:
    """Errors first."""
    found = Findings()
    if result.failure:
        seen = f"its last lines: {' | '.join(result.last_lines)}"
        message = f"a real run failed there: {result.failure}"
        fix = "start it by hand to see all of it: ddp-orch up INVENTORY --debug"
        found.add("error", "deep-run-failed", result.failed_on, message, fix, seen)
    for one in result.figures:
        if isinstance(one.measured, AllReduce) and not one.measured.right:
            message = f"an all-reduce of {one.measured.bytes} bytes by {one.measured.backend} gave a wrong sum"
            fix = "NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1, in env: which of them cures it says where to look"
            found.add("error", "collective-wrong-result", one.host, message, fix, json.dumps(one.as_dict()))
    products = _products(result)
    for host, product in products:
        usual = median(other.tflops for _, other in products if other.device == product.device)
        if product.tflops * SLOWER < usual:
            message = f"rank {product.rank} ({product.device}) computes at {product.tflops:.3g} TFLOP/s"
            seen = f"matrix product; median of all ranks {usual:.3g} TFLOP/s"
            fix = "look for other work and heat there: nvidia-smi, uptime"
            found.add("warning", "straggler", host, message, fix, seen)
    return found.all()


def _products(result: Result) -> list[tuple[str, Product]]:
    return [(one.host, one.measured) for one in result.figures if isinstance(one.measured, Product)]


def render(result: Result) -> str:
    """All-reduces by backend and size, the slowest rank of each named; the matrix products."""
    lines = []
    reduces = [(one.host, one.measured) for one in result.figures if isinstance(one.measured, AllReduce)]
    for backend, size in dict.fromkeys((one.backend, one.bytes) for _, one in reduces):
        same = [(host, one) for host, one in reduces if (one.backend, one.bytes) == (backend, size)]
        host, slowest = max(same, key=lambda item: item[1].seconds)
        lines.append(
            f"  all-reduce {backend} {size >> 10:>6} KiB  {size / slowest.seconds * 8 / 1e9:8.3g} Gbit/s"
            f"  {slowest.seconds * 1e3:8.3g} ms  slowest: rank {slowest.rank} on {host}"
        )
    products = sorted(_products(result), key=lambda item: item[1].tflops)
    if products:
        (host, worst), (_, best) = products[0], products[-1]
        lines.append(
            f"  matrix product  {worst.tflops:.3g} to {best.tflops:.3g} TFLOP/s a rank"
            f"  slowest: rank {worst.rank} on {host}"
        )
    return "\n".join(["a real run:", *lines]) + "\n" if lines else ""
