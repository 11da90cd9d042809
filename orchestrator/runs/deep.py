"""`check --deep`: a short run on the hosts themselves, with their torch, and what its figures say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..checks.findings import Findings
from ..errors import OrchError
from ..hosts import answers, claims
from ..hosts.fleet import Fleet
from ..inventory.model import Inventory
from ..output.finding import Finding
from ..output.lines import Line
from ..plan import plan
from ..plan import snapshot as ship
from ..plan.plan import Plan
from . import ending, launch
from .follow import Choice, View
from .launch import Surroundings

SCRIPT = Path(__file__).parent / "payload" / "deep.py"
MARKER = "ddp-orch-deep: "
SLOWER = 3  # times less than the median of all ranks


@dataclass(frozen=True)
class Result:
    """What the run measured."""

    figures: tuple[Mapping[str, Any], ...]
    """As payload/deep.py prints them, and `host`."""
    failure: str
    """Why the run failed; empty when it did not."""
    failed_on: tuple[str, ...]
    last_lines: tuple[str, ...]
    """Of the hosts where it failed, on stderr."""


def run(read: Inventory, run_id: str, fleet: Fleet, around: Surroundings) -> Result:
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


def _watch(resolved: Plan, fleet: Fleet, around: Surroundings) -> Result:
    figures: list[Mapping[str, Any]] = []
    others: list[tuple[str, str]] = []

    def take(batch: list[Line]) -> None:
        for line in batch:
            _, marker, text = line.text.partition(MARKER)
            if marker and (figure := _figure(text)) is not None:
                figures.append({"host": line.host, **figure})
                progress.at(line.host, figure["what"].replace("_", " "))
            elif line.stream == "stderr":
                others.append((line.host, line.text))
        progress.tick()

    hosts = [node.host for node in resolved.nodes]
    progress = fleet.progress
    ranks = claims.ranks_of_plan(resolved)
    view = View(resolved.run_id, hosts, Choice(follow=True), fleet, around.warn, ranks=ranks)
    try:
        with progress.of([host.name for host in hosts]):
            for host in hosts:
                progress.at(host.name, "importing torch")
            view.run(take)
    except KeyboardInterrupt:
        ending.kill(fleet, hosts, ending.Victims(runs=(resolved.run_id,)), grace=0.0, by="Ctrl-C")
        raise
    parts = {host: outcome["run"] for host, outcome in view.outcomes.items() if outcome.get("run")}
    verdict = claims.verdict_of(parts, {host.name: node for node, host in enumerate(hosts)}) or {}
    first = verdict.get("first_failure") or {}
    if verdict.get("state") == "succeeded":
        return Result(tuple(figures), "", (), ())
    everybody = tuple(node.host.name for node in resolved.nodes)
    failed_on = (str(first["host"]),) if first.get("host") else everybody
    last = tuple(text for host, text in others if host in failed_on)[-5:]
    return Result(tuple(figures), str(first.get("what") or "no host tells why"), failed_on, last)


def _figure(text: str) -> dict[str, Any] | None:
    """A line of the payload; None where a host made it up."""
    try:
        figure: dict[str, Any] = json.loads(text)
        answers.check("deep", figure)
    except (ValueError, RecursionError, answers.Nonsense):
        return None
    return figure


def judge(result: Result) -> tuple[Finding, ...]:
    """Errors first."""
    found = Findings()
    if result.failure:
        seen = f"its last lines: {' | '.join(result.last_lines)}"
        message = f"a real run failed there: {result.failure}"
        fix = "start it by hand to see all of it: ddp-orch up INVENTORY --debug"
        found.add("error", "deep-run-failed", result.failed_on, message, fix, seen)
    for one in result.figures:
        if one["what"] == "all_reduce" and not one["right"]:
            message = f"an all-reduce of {one['bytes']} bytes by {one['backend']} gave a wrong sum"
            fix = "NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1, in env: which of them cures it says where to look"
            found.add("error", "collective-wrong-result", one["host"], message, fix, json.dumps(dict(one)))
    products = [one for one in result.figures if one["what"] == "product"]
    for one in products:
        usual = median(other["tflops"] for other in products if other["device"] == one["device"])
        if one["tflops"] * SLOWER < usual:
            message = f"rank {one['rank']} ({one['device']}) computes at {one['tflops']:.3g} TFLOP/s"
            seen = f"matrix product; median of all ranks {usual:.3g} TFLOP/s"
            fix = "look for other work and heat there: nvidia-smi, uptime"
            found.add("warning", "straggler", one["host"], message, fix, seen)
    return found.all()


def render(result: Result) -> str:
    """All-reduces by backend and size, the slowest rank of each named; the matrix products."""
    lines = []
    reduces = [one for one in result.figures if one["what"] == "all_reduce"]
    for backend, size in dict.fromkeys((one["backend"], one["bytes"]) for one in reduces):
        same = [one for one in reduces if (one["backend"], one["bytes"]) == (backend, size)]
        slowest = max(same, key=lambda one: float(one["seconds"]))
        lines.append(
            f"  all-reduce {backend} {size >> 10:>6} KiB  {size / slowest['seconds'] * 8 / 1e9:8.3g} Gbit/s"
            f"  {slowest['seconds'] * 1e3:8.3g} ms  slowest: rank {slowest['rank']} on {slowest['host']}"
        )
    products = [one for one in result.figures if one["what"] == "product"]
    if products:
        worst = min(products, key=lambda one: float(one["tflops"]))
        best = max(products, key=lambda one: float(one["tflops"]))
        lines.append(
            f"  matrix product  {worst['tflops']:.3g} to {best['tflops']:.3g} TFLOP/s a rank"
            f"  slowest: rank {worst['rank']} on {worst['host']}"
        )
    return "\n".join(["a real run:", *lines]) + "\n" if lines else ""
