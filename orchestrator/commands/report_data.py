"""Put a report together from what the hosts have recorded of a run. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..answers.recorded import Record, Spec, UsageAt, Way
from ..answers.runs import FirstFailure, Part
from ..hosts import claims
from ..node.serve.figures import figures as figures_in
from ..output.lines import Line, Mask, presentable, rfc3339
from ..output.span import ALL, Span
from ..runs import registry, timeline
from ..runs.bad_loss import BadLoss
from .describe import command_of, describe_commit

WAYS: tuple[Way, ...] = ("received", "sent")
PRIVATE = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
LEAST_REPEATED = 3  # losses at one and the same step that show that it is no step of the training
LOG_WIDTH = 400  # characters of a line of the log; the rest is cut off
LOG_SIZE = 600_000  # characters of the log; of a longer one, the newest lines are kept


@dataclass(frozen=True)
class Report:
    """Everything in a report. Times are RFC 3339 in UTC; in series, seconds since the first attempt."""

    run_id: str
    name: str
    state: str
    started_at: str
    ended_at: str | None
    by: str
    attempts: int
    ranks: int
    first_failure: Mapping[str, Any] | None
    said: tuple[str, ...]
    """The last lines on stderr of the rank that failed first."""
    timeline: tuple[Mapping[str, Any], ...]
    """`{"at", "seconds", "kind", "what"}`."""
    hosts: tuple[Mapping[str, Any], ...]
    """`{"host", "state", "exit_code", "signal", "nproc", "versions"}`."""
    training: Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]]
    """`loss`, `rate` and `step_time`: attempt and rank -> (step, or seconds if no rank printed steps; value)."""
    diagnosis: Mapping[str, Any]
    """As `diagnose --json`: `{"findings": [...], "consequences": [...]}`."""
    slow_ranks: tuple[Mapping[str, Any], ...]
    """`{"rank", "host", "step_time", "times_the_median"}`, the slowest first, from 5 % above the median."""
    machines: Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]]
    """`gpu`, `gpu_memory`, `watts`, `cpu`, `memory`, `received`, `sent`, `read`, `written`: host -> (seconds, value).

    `read` and `written`: by all disks.
    """
    config: Mapping[str, Any]
    log: tuple[Mapping[str, Any], ...] = ()
    """The last lines of each rank, as `logs --json`."""
    commit: str = ""
    """Of the code that was sent, and how many files differed from it; "": unknown."""
    reproduce: str = ""
    """The command that starts the same run again; "": unknown."""
    written_at: str = ""
    version: str = ""
    """Of ddp-orch."""
    last_step: float | None = None
    """The newest step that a rank has printed; None: no rank printed steps."""
    last_loss: float | str | None = None
    """Of the first rank of the newest attempt that printed one; "nan", "inf" and "-inf" are texts."""
    bad_loss: str = ""
    """Since which line the loss is not finite, as `up` warns of it; "": it is."""
    since: str | None = None
    """If set, `training`, `machines` and `log` begin there, and end at `until`."""
    until: str | None = None


def make(
    run: registry.Run,
    records: Mapping[str, Record],
    clocks: Mapping[str, float],
    figures: Sequence[Line],
    last_lines: Sequence[Line],
    diagnosis: Mapping[str, Any],
    mask: Mask,
    log: Sequence[Line] = (),
    span: Span = ALL,
) -> Report:
    """Put the report together. Pure.

    `records` by host, that of the head first. `clocks`: seconds that the clock of a host is ahead of ours. `figures`:
    lines that may contain figures. `last_lines`: of the rank that failed first. `log`: the last lines of each rank.
    `span`: that of `figures`, and of the load of the machines, by the clock of the head.
    """
    complete = {host: record for host, record in records.items() if record.run and record.spec}
    head = complete[timeline.source(run.nodes, run.head, complete) or next(iter(complete))]
    spec = head.spec
    assert spec is not None
    entries = timeline.history(run, timeline.complete(run, head, records.values()))
    began = entries[0].at if entries else min((line.at for line in figures), default=0.0)
    printed = [(line, figures_in(line.text)) for line in figures if line.rank is not None]
    values = _count_on(_finite(printed))
    losses = _newest_losses(printed)
    training = _training(values, began)
    first = first_failure(run, records)
    return Report(
        run_id=run.run_id,
        name=run.name,
        state=run.state,
        started_at=run.started_at,
        ended_at=None if (ended_at := _ended_at(run, head)) is None else rfc3339(ended_at),
        by=spec.by,
        attempts=timeline.newest_attempt(run, entries),
        ranks=run.ranks,
        first_failure=_mask_texts(first and _as_dict(first), mask),
        said=tuple(presentable(line.text, False, mask) for line in last_lines),
        timeline=tuple(
            {
                "at": rfc3339(entry.at),
                "seconds": entry.at - began,
                "kind": entry.kind,
                "what": presentable(entry.what, False, mask),
            }
            for entry in entries
        ),
        hosts=tuple(
            _describe_host(host, record, record.run, record.spec, mask)
            for host, record in records.items()
            if record.run and record.spec
        ),
        training=training,
        diagnosis=_mask_texts(diagnosis, mask),
        slow_ranks=_slow_ranks(training["step_time"], {_series(line): line.host for line in figures}),
        machines=_machines(records, clocks, began, span),
        config=_config(spec, mask),
        log=_log(log, mask),
        commit=describe_commit(spec.code) if isinstance(spec.code, Mapping) else "",
        last_step=_last_step(values),
        last_loss=_last_loss(losses),
        bad_loss=_describe_bad_loss(losses, mask),
        since=None if span.first is None else rfc3339(span.first),
        until=None if span.last is None else rfc3339(span.last),
    )


def _ended_at(run: registry.Run, head: Record) -> float | None:
    """When the run ended; None: it has not. A head that was lost does not know it."""
    if head.exit is not None:
        return head.exit.at
    return None if run.unfinished else run.ended_at


def _log(lines: Sequence[Line], mask: Mask) -> tuple[Mapping[str, Any], ...]:
    newest: list[Mapping[str, Any]] = []
    size = 0
    for line in sorted(lines, key=lambda line: line.at)[::-1]:  # lines of the same time stay in their order
        text = presentable(line.text, False, mask)
        text = text if len(text) <= LOG_WIDTH else f"{text[:LOG_WIDTH]} ..."
        size += len(text) + 40
        if size > LOG_SIZE:
            break
        place = {"at": rfc3339(line.at), "host": line.host, "rank": line.rank}
        newest.append({**place, "stream": line.stream, "attempt": line.attempt, "text": text})
    return tuple(reversed(newest))


def _mask_texts(value: Any, mask: Mask) -> Any:
    """The same value, with secrets masked and escape sequences removed in every text."""
    if isinstance(value, str):
        return presentable(value, False, mask)
    if isinstance(value, Mapping):
        return {key: _mask_texts(item, mask) for key, item in value.items()}
    return [_mask_texts(item, mask) for item in value] if isinstance(value, Sequence) else value


def first_failure(run: registry.Run, records: Mapping[str, Record]) -> FirstFailure | None:
    verdict = claims.verdict_of({host: record.run for host, record in records.items() if record.run}, run.nodes)
    return verdict.first_failure if verdict else None


def _as_dict(failure: FirstFailure) -> dict[str, Any]:
    """As JSON. A failed process has an exit code; a silent host has none."""
    place = {"host": failure.host, "node": failure.node}
    if failure.gone is not None:
        keys = ("rank", "exit_code", "signal", "pid", "what", "said", "gone", "attempt", "at")
        fields = {**{key: getattr(failure, key) for key in keys}, **place}
    else:
        fields = {**place, "rank": failure.rank, "what": failure.what, "said": failure.said, "at": failure.at}
        fields |= {"lost": failure.lost or None, "stalled": failure.stalled or None}
        fields = {key: value for key, value in fields.items() if value is not None or key in ("node", "rank")}
    return fields if failure.at_start is None else {**fields, "at_start": failure.at_start}


def _describe_host(name: str, record: Record, run: Part, spec: Spec, mask: Mask) -> dict[str, Any]:
    newest = record.samples[-1] if record.samples else None
    return {
        "host": name,
        "state": claims.state_of_host(run),
        "exit_code": run.exit_code,
        "signal": run.signal,
        "nproc": run.nproc,
        "python": spec.python,
        "gpus": len(newest.gpus) if newest else None,
        "cores": newest.cores if newest else None,
        "memory": newest.memory[1] if newest else None,
        "versions": {
            str(name): presentable(str(version), False, mask)
            for name, version in (spec.versions.items() if isinstance(spec.versions, Mapping) else ())
        },
    }


def _finite(printed: Sequence[tuple[Line, dict[str, float]]]) -> list[tuple[Line, dict[str, float]]]:
    """The lines with the figures that a curve can show."""
    return [(line, {name: value for name, value in values.items() if math.isfinite(value)}) for line, values in printed]


def _newest_losses(printed: Sequence[tuple[Line, dict[str, float]]]) -> list[tuple[Line, float]]:
    """The losses of the newest attempt that has any, in the order in which they were printed."""
    losses = [(line, values["loss"]) for line, values in printed if "loss" in values]
    attempt = max((line.attempt for line, _ in losses), default=0)
    return sorted((loss for loss in losses if loss[0].attempt == attempt), key=lambda loss: loss[0].at)


def _last_loss(losses: Sequence[tuple[Line, float]]) -> float | str | None:
    newest = {line.rank: loss for line, loss in losses if line.rank is not None}
    if not newest:
        return None
    loss = newest[min(newest)]
    return loss if math.isfinite(loss) else str(loss)


def _describe_bad_loss(losses: Sequence[tuple[Line, float]], mask: Mask) -> str:
    watch = BadLoss()
    watch.push([line for line, _ in losses], 0.0)
    return presentable(watch.describe(), False, mask)


def _count_on(figures: Sequence[tuple[Line, dict[str, float]]]) -> list[tuple[Line, dict[str, float]]]:
    """Steps that begin anew in each epoch, as those of a progress bar do, go on where the last ones ended.

    Where only the end of each bar is known, no step tells one epoch from another: then without steps.
    """
    ordered = sorted(figures, key=lambda figure: figure[0].at)
    ends: dict[str, list[float]] = {}  # the last step of each epoch
    losses: dict[str, list[float]] = {}  # the steps at which a rank has printed one
    for line, values in ordered:
        known = ends.setdefault(_series(line), [])
        if "step" in values:
            is_anew = not known or values["step"] < known[-1]
            known[len(known) - (not is_anew) :] = [values["step"]]
        if "loss" in values and known:
            losses.setdefault(_series(line), []).append(known[-1])
    if any(len(steps) >= LEAST_REPEATED and len(set(steps)) == 1 for steps in losses.values()):
        return [(line, {name: value for name, value in values.items() if name != "step"}) for line, values in ordered]
    # another bar, as of an evaluation, has another end
    epochs = {key for key, known in ends.items() if len({*known[:-1], max(known, default=0.0)}) == 1 < len(known)}
    counted = []
    done: dict[str, list[float]] = {}
    for line, values in ordered:
        key = _series(line)
        if key in epochs and "step" in values:
            before = done.setdefault(key, [0.0, 0.0])  # the steps of all epochs before, and the newest of this one
            if values["step"] < before[1]:
                before[0] += before[1]
            before[1] = values["step"]
            values = {**values, "step": before[0] + before[1]}
        counted.append((line, values))
    return counted


def _last_step(figures: Sequence[tuple[Line, Mapping[str, float]]]) -> float | None:
    steps = [(line.attempt, line.at, values["step"]) for line, values in figures if "step" in values]
    return max(steps)[2] if steps else None


def _training(
    figures: Sequence[tuple[Line, Mapping[str, float]]], began: float
) -> dict[str, dict[str, tuple[tuple[float, float], ...]]]:
    """If ranks print steps, a line without one belongs to the step that its rank has printed last.

    A line of a rank that prints none belongs to the step that any rank of the attempt has printed last.
    """
    series: dict[str, dict[str, list[tuple[float, float]]]] = {"loss": {}, "rate": {}, "step_time": {}}
    ranks_with_steps = {_series(line) for line, values in figures if "step" in values}
    steps: dict[str, float] = {}
    newest: dict[int, float] = {}  # by attempt
    for line, values in sorted(figures, key=lambda figure: figure[0].at):
        key = _series(line)
        if "step" in values:
            steps[key] = newest[line.attempt] = values["step"]
        x = steps.get(key) if key in ranks_with_steps else newest.get(line.attempt)
        if not ranks_with_steps:
            x = line.at - began
        if x is None:
            continue  # before the first step
        for name, ranks in series.items():
            if name in values:
                ranks.setdefault(key, []).append((x, values[name]))
    return {name: {key: tuple(points) for key, points in ranks.items()} for name, ranks in series.items()}


def _series(line: Line) -> str:
    """The name of a line in a chart."""
    return f"attempt {line.attempt}, rank {line.rank}"


def _slow_ranks(
    step_times: Mapping[str, Sequence[tuple[float, float]]], hosts: Mapping[str, str]
) -> tuple[Mapping[str, Any], ...]:
    means = {name: sum(value for _, value in points) / len(points) for name, points in step_times.items()}
    if len(means) < 2:
        return ()
    median = sorted(means.values())[len(means) // 2]
    slow = [
        {"rank": name, "host": hosts[name], "step_time": mean, "times_the_median": mean / median}
        for name, mean in means.items()
        if median > 0 and mean / median > 1.05
    ]
    return tuple(sorted(slow, key=lambda rank: -float(rank["step_time"])))


def _machines(
    records: Mapping[str, Record], clocks: Mapping[str, float], began: float, span: Span
) -> dict[str, dict[str, tuple[tuple[float, float], ...]]]:
    names = ("gpu", "gpu_memory", "watts", "cpu", "memory", "received", "sent", "read", "written")
    series: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {name: {} for name in names}
    first = next((clocks.get(host, 0.0) for host in records), 0.0)
    for host, record in records.items():
        ahead = clocks.get(host, 0.0) - first
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for before, now in zip([None, *record.samples], record.samples, strict=False):
            if not span.holds(now.at - ahead):
                continue
            for name, value in _figures_between(before, now).items():
                points[name].append((now.at - ahead - began, value))
        for name, host_points in points.items():
            if host_points:
                series[name][host] = tuple(host_points)
    return series


def _figures_between(before: UsageAt | None, now: UsageAt) -> dict[str, float]:
    """GPU, CPU and memory in percent, memory of the fullest GPU in bytes, power of all GPUs in W, others in bytes/s."""
    values: dict[str, float] = {}
    if busy := [gpu.busy for gpu in now.gpus if gpu.busy is not None]:
        values["gpu"] = float(sum(busy) / len(busy))
    if used := [gpu.used for gpu in now.gpus if gpu.used is not None]:
        values["gpu_memory"] = float(max(used))
    if watts := [gpu.watts for gpu in now.gpus if gpu.watts is not None]:
        values["watts"] = float(sum(watts))
    values["memory"] = 100 * now.memory[0] / now.memory[1]
    if before is not None and now.at > before.at:
        worked, whole = (new - old for new, old in zip(now.cpu, before.cpu, strict=True))
        if whole > 0:
            values["cpu"] = 100 * worked / whole
        old = {nic.name: nic for nic in before.nics}
        for way in WAYS:
            moved = sum(max(0, nic.counted(way) - old[nic.name].counted(way)) for nic in now.nics if nic.name in old)
            values[way] = moved / (now.at - before.at)
        if now.disk is not None and before.disk is not None:
            for name, new, past in zip(("read", "written"), now.disk, before.disk, strict=True):
                values[name] = max(0.0, new - past) / (now.at - before.at)
    return values


def _config(spec: Spec, mask: Mask) -> dict[str, Any]:
    """The command and its settings. Values of variables whose names look like credentials are left out."""
    env = {name: "***" if PRIVATE.search(name) else mask.hide(value) for name, value in sorted(spec.env.items())}
    keys = (
        "inventory",
        "workdir",
        "code",
        "setup",
        "grace",
        "max_restarts",
        "min_nodes",
        "stall_timeout",
        "interface",
        "ports",
    )
    return {
        "command": [mask.hide(word) for word in command_of(spec)],
        "launcher": spec.launcher["name"] if isinstance(spec.launcher, dict) else "",
        "env": env,
        **{key: getattr(spec, key) for key in keys},
    }
