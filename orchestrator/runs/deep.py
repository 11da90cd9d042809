"""`check --deep`: start a short real run that measures collectives and matrix products, and check its figures."""

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
from ..plan import plan as planning
from ..plan import snapshot as ship
from ..plan.launchers import for_own_scripts
from ..plan.plan import Plan
from ..ui.progress import NoProgress
from . import ending, launch
from .follow import LogFilter, View
from .launch import LaunchContext

SCRIPT = Path(__file__).parent / "payload" / "deep.py"
MARKER = "ddp-orch-deep: "
SLOWER = 3  # a rank is slow if the median of all ranks is this many times its speed


@dataclass(frozen=True)
class Figure:
    """A measurement of one rank."""

    host: str
    value: AllReduce | Product

    def as_dict(self) -> dict[str, Any]:
        return {"host": self.host, **asdict(self.value)}


@dataclass(frozen=True)
class Result:
    """The outcome of the run."""

    figures: tuple[Figure, ...]
    failure: str
    """Why the run failed; "" if it succeeded."""
    failed_on: tuple[str, ...]
    """The hosts where it failed."""
    last_lines: tuple[str, ...]
    """The last lines of stderr on these hosts."""


def run(inventory: Inventory, run_id: str, fleet: Fleet, context: LaunchContext) -> Result:
    """Start the run with the inventory's environment and, if it starts ranks, its launcher. Wait for its end.

    It is never restarted.
    """
    snapshot = ship.snapshot(SCRIPT, (str(SCRIPT),), SCRIPT.parent)
    assert snapshot is not None  # None is for `run.sync: none` only
    code = planning.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), len(snapshot.files), snapshot.size)
    hosts = tuple(replace(host, workdir=None) for host in inventory.hosts)
    inventory = for_own_scripts(inventory)
    run_options = replace(inventory.run, max_restarts=0, secrets=())
    silent = replace(inventory.notify, webhook=None, mail=None, command=None)  # no alert about a check
    inventory = replace(inventory, hosts=hosts, run=run_options, notify=silent)
    command = ("-u", SCRIPT.name)
    plan = planning.make(inventory, run_id=run_id, name=run_id, command=command, code=code, env={}, debug=False)
    try:
        resolved = launch.launch(plan, snapshot, fleet, context)
    except OrchError as error:
        return Result((), str(error), tuple(host.name for host in hosts), ())
    return _follow(resolved, fleet, context)


def _follow(resolved: Plan, fleet: Fleet, context: LaunchContext) -> Result:
    hosts = [node.host for node in resolved.nodes]
    progress = fleet.progress
    output = _Output(progress)
    ranks = claims.ranks_of_plan(resolved)
    view = View(resolved.run_id, hosts, LogFilter(follow=True), fleet, context.warn, ranks=ranks)
    try:
        with progress.track([host.name for host in hosts]):
            for host in hosts:
                progress.set_phase(host.name, "importing torch")
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
    last_lines = tuple(text for host, text in output.errors if host in failed_on)[-5:]
    return Result(tuple(output.figures), first.what if first else "reason unknown", failed_on, last_lines)


class _Output(Stage):
    """Collects the figures that the payload prints and the other lines of stderr, and shows progress."""

    def __init__(self, progress: NoProgress) -> None:
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
            if marker and (value := _decode(text)) is not None:
                self.figures.append(Figure(line.host, value))
                self._progress.set_phase(line.host, value.what.replace("_", " "))
            elif line.stream == "stderr":
                self.errors.append((line.host, line.text))
        pause = self._progress.tick()
        self._tick_at = math.inf if pause is None else now + pause
        return ()


def _decode(text: str) -> AllReduce | Product | None:
    """The figure in a line of the payload; None if the line is invalid."""
    try:
        return decode(DeepFigure, {"figure": json.loads(text)}, "deep").figure
    except (ValueError, RecursionError, MalformedAnswer):
        return None


def check_result(result: Result) -> tuple[Finding, ...]:
    """The findings about the run and its figures, errors first."""
    findings = Findings()
    if result.failure:
        evidence = f"its last lines: {' | '.join(result.last_lines)}"
        message = f"the test run failed: {result.failure}"
        fix = "start a run with debug output: ddp-orch up INVENTORY --debug"
        findings.add("error", "deep-run-failed", result.failed_on, message, fix, evidence)
    for figure in result.figures:
        value = figure.value
        if isinstance(value, AllReduce) and not value.right:
            message = f"an all-reduce of {value.bytes} bytes with {value.backend} gave a wrong sum"
            fix = (
                "set env: {NCCL_P2P_DISABLE: '1'}; if that helps, check NVLink and PCIe. Otherwise set "
                "env: {NCCL_IB_DISABLE: '1'}; if that helps, check InfiniBand"
            )
            findings.add("error", "collective-wrong-result", figure.host, message, fix, json.dumps(figure.as_dict()))
    products = _products(result)
    for host, product in products:
        usual = median(other.tflops for _, other in products if other.device == product.device)
        if product.tflops * SLOWER < usual:
            message = f"rank {product.rank} ({product.device}) computes at {product.tflops:.3g} TFLOP/s"
            evidence = f"matrix product; median of all ranks {usual:.3g} TFLOP/s"
            fix = "check that host for other programs and high temperatures: nvidia-smi, uptime"
            findings.add("warning", "straggler", host, message, fix, evidence)
    return findings.all()


def _products(result: Result) -> list[tuple[str, Product]]:
    return [(figure.host, figure.value) for figure in result.figures if isinstance(figure.value, Product)]


def render(result: Result) -> str:
    """The all-reduces by backend and size with the slowest rank of each, and the matrix products."""
    lines = []
    reduces = [(figure.host, figure.value) for figure in result.figures if isinstance(figure.value, AllReduce)]
    for backend, size in dict.fromkeys((reduce.backend, reduce.bytes) for _, reduce in reduces):
        same = [(host, reduce) for host, reduce in reduces if (reduce.backend, reduce.bytes) == (backend, size)]
        host, slowest = max(same, key=lambda item: item[1].seconds)
        lines.append(
            f"  all-reduce {backend} {size >> 10:>6} KiB  {size / slowest.seconds * 8 / 1e9:8.3g} Gbit/s"
            f"  {slowest.seconds * 1e3:8.3g} ms  slowest: rank {slowest.rank} on {host}"
        )
    products = sorted(_products(result), key=lambda item: item[1].tflops)
    if products:
        (host, slowest_rank), (_, fastest_rank) = products[0], products[-1]
        lines.append(
            f"  matrix product  {slowest_rank.tflops:.3g} to {fastest_rank.tflops:.3g} TFLOP/s per rank"
            f"  slowest: rank {slowest_rank.rank} on {host}"
        )
    return "\n".join(["test run:", *lines]) + "\n" if lines else ""
