"""Diagnose one run: ask its hosts what they recorded and what they know."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ..answers.evidence import EVIDENCE, PATHS, DumpSummary, Evidence, Waits
from ..answers.runs import Failure, Part, Verdict
from ..diagnosis import missing
from ..diagnosis.dumps import Collective, Dump, Group
from ..diagnosis.engine import Diagnosis, diagnose
from ..diagnosis.exits import Exit
from ..diagnosis.record import RunRecord
from ..diagnosis.transcript import LogLine, strip_torch_tags
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.console import fold
from ..output.finding import Finding
from ..output.lines import Line
from . import kept_back
from .follow import LogFilter, View

LINES = 100_000  # that are asked for, of all streams together
MOST_ATTEMPTS = 10  # before the last
LINES_A_STREAM = 200, 4000  # the fewest and the most: the last of each, as a failure is at the end


def of_run(
    run_id: str,
    parts: Mapping[str, Part],
    nodes: Mapping[str, int],
    hosts: Mapping[str, Host],
    fleet: Fleet,
) -> Diagnosis:
    """`parts`: what the hosts say of the run (runs.py); `nodes`: the node that each is. Those that do not answer are
    left out, and the first cause is as sure as the others can know it.
    """
    here = {host: parts[host] for host in nodes if host in parts and host in hosts}
    verdict = claims.verdict_of(here, nodes)
    first = min(here, key=lambda host: nodes[host], default=None)  # the head, where it has answered
    attempt = here[first].attempt if first is not None else 0
    between = first is not None and here[first].state == "restarting"
    failed = verdict is not None and verdict.state != "succeeded"
    if not failed and attempt < 2 and not between:
        return Diagnosis((), ())

    def ask(_: Host, session: Session) -> Evidence:
        return session.request(EVIDENCE, {"run_id": run_id})

    gathered = fleet.each([hosts[host] for host in here], ask, "asking what it knows")
    streams = sum(2 * part.nproc + 1 for part in here.values())
    fewest, most = LINES_A_STREAM
    tail = max(fewest, min(most, LINES // streams))
    lines: list[Line] = []
    choice = LogFilter(follow=False, tail=tail)
    ranks = claims.ranks_of(here, nodes)
    view = View(run_id, [hosts[host] for host in here], choice, fleet, lambda _: None, ranks=ranks, kept=True)
    view.run(lines.extend)
    answers = {host: _by_one_clock(answer, view.ahead.get(host, 0.0)) for host, answer in gathered.done.items()}
    same_code = not any(hosts[host].workdir for host in here)
    found = Diagnosis((), ())
    if verdict is not None and failed:
        newest = claims.newest_ranks(here, nodes)
        found = judge(lines, verdict, answers, newest, attempt=attempt, same_code=same_code)
        found = replace(found, findings=_look_for_files(run_id, found.findings, [hosts[host] for host in here], fleet))
        found = kept_back.explain(found, run_id) if same_code else found
        found = _without(found, _unasked(here, nodes, gathered.done), here, verdict)
    over = attempt if verdict is None and between else attempt - 1
    before = sorted({line.attempt for line in lines if line.attempt <= over})[-MOST_ATTEMPTS:]
    return replace(found, earlier=tuple((one, judge_earlier(lines, answers, one, same_code)) for one in before))


def _unasked(here: Mapping[str, Part], nodes: Mapping[str, int], answered: Collection[str]) -> list[str]:
    """The hosts of the run, by its own names, that have told nothing."""
    names = next(iter(here.values())).hosts
    told = {nodes[host] for host in here if host in answered}
    return [name for node, name in enumerate(names) if node not in told]


def _without(found: Diagnosis, unasked: Sequence[str], here: Mapping[str, Part], verdict: Verdict) -> Diagnosis:
    """What is found while hosts have told nothing: one of them may have failed before, unless the head knows better."""
    if not unasked or not found.findings:
        return found
    by_head = any(part.node == 0 and part.verdict for part in here.values())
    failure = verdict.first_failure if by_head else None
    first, *others = found.findings
    if failure and (first.hosts[:1], first.rank) == ((failure.host,), failure.rank):
        return found
    message = f"{first.message} ({fold(unasked)} could not be asked, and may have failed before.)"
    sure = "medium" if first.confidence == "high" else first.confidence
    return replace(found, findings=(replace(first, confidence=sure, message=message), *others))


def _look_for_files(
    run_id: str, findings: tuple[Finding, ...], hosts: Sequence[Host], fleet: Fleet
) -> tuple[Finding, ...]:
    """Where the first cause is a missing file, ask every host whether it has it."""
    path = missing.path_of(findings[0]) if findings else None
    if path is None:
        return findings

    def ask(_: Host, session: Session) -> str | None:
        return session.request(PATHS, {"run_id": run_id, "paths": [path]}).paths[path]

    answers = fleet.each(hosts, ask, f"looking for {path}").done
    first = missing.judge(findings[0], path, answers, [host.name for host in hosts])
    return (first, *(one for one in findings[1:] if one.code != first.code))


def _by_one_clock(answer: Evidence, ahead: float) -> Evidence:
    """The view's lines have the clock of the first host; so shall what the hosts know."""
    return replace(
        answer,
        failures=tuple(replace(one, at=one.at - ahead) for one in answer.failures),
        kernel=tuple(replace(one, at=one.at - ahead) for one in answer.kernel),
        finished=tuple(replace(one, at=one.at - ahead) for one in answer.finished),
    )


def judge(
    lines: Sequence[Line],
    verdict: Verdict,
    gathered: Mapping[str, Evidence],
    ranks: Mapping[int, str],
    *,
    attempt: int | None = None,
    same_code: bool = False,
) -> Diagnosis:
    """Why the run ended: by what its last attempt shows.

    `gathered`: what the hosts answered to `evidence`. `same_code`: it was sent to all of them.
    """
    last = attempt or max((line.attempt for line in lines), default=1)
    first = verdict.first_failure
    failures = _failures(gathered, last)
    if first and not any(failure.at == first.at for _, failure in failures):
        failures.append((first.host, first))
    by = verdict.stopped_by if verdict.state == "killed" else None
    record = RunRecord(
        exits=_exits(failures),
        hosts=tuple(gathered),
        ranks=ranks,
        oom_hosts=tuple(host for host, answer in gathered.items() if answer.oom_kills),
        dumps=[dump_of(summary) for answer in gathered.values() for summary in answer.dumps],
        lost=first.host if first and first.lost else None,
        stopped_by=by,
        failed_at=min((failure.at for _, failure in failures), default=None),
        finished={
            one.rank: one.at
            for host, answer in gathered.items()
            for one in answer.finished
            if one.attempt == last and ranks.get(one.rank) == host
        },
        stalled=bool(first and first.stalled),
        same_code=same_code,
    )
    return diagnose(_said(lines, gathered, last), record)


def judge_earlier(lines: Sequence[Line], gathered: Mapping[str, Evidence], attempt: int, same_code: bool) -> Finding:
    """Why an attempt failed after which the run was started again."""
    failures = _failures(gathered, attempt)
    failed_at = min((failure.at for _, failure in failures), default=None)
    record = RunRecord(exits=_exits(failures), failed_at=failed_at, same_code=same_code)
    return diagnose(_said(lines, gathered, attempt), record).findings[0]


def _failures(gathered: Mapping[str, Evidence], attempt: int) -> list[tuple[str, Failure]]:
    return [
        (host, failure)
        for host, answer in gathered.items()
        for failure in answer.failures
        if failure.attempt in (None, attempt)
    ]


def _exits(failures: Sequence[tuple[str, Failure]]) -> list[Exit]:
    return [exit_of(host, failure) for host, failure in failures if failure.exit_code is not None or failure.signal]


def _said(lines: Sequence[Line], gathered: Mapping[str, Evidence], attempt: int) -> list[LogLine]:
    """What was said in an attempt, and what the kernels said meanwhile."""
    told = [
        LogLine(0, one.host, one.host, one.rank, one.at, one.text, None, one.stream == "agent", one.attempt, one.stream)
        for one in lines
        if one.attempt == attempt
    ]
    begun = min((line.at for line in lines if line.attempt == attempt), default=0.0) if attempt > 1 else 0.0
    ended = min((line.at for line in lines if line.attempt > attempt), default=float("inf"))
    for host, answer in gathered.items():
        told += [
            LogLine(0, host, host, None, one.at, one.text, None, True, attempt)
            for one in answer.kernel
            if begun <= one.at < ended
        ]
    told.sort(key=lambda line: line.at or 0.0)
    return [strip_torch_tags(line, number) for number, line in enumerate(told)]


def exit_of(host: str, failure: Failure) -> Exit:
    name = failure.signal
    known = isinstance(name, str) and name in signal.Signals.__members__
    code = -signal.Signals[str(name)].value if known else failure.exit_code or 1
    what = failure.what + (f" ({failure.said})" if failure.said else "")
    line = LogLine(-1, host, host, failure.rank, failure.at, what)
    agent = failure.rank is None
    return Exit(code, -1, host, failure.rank, failure.at, failure.pid, line, None, not agent, agent)


def dump_of(summary: DumpSummary) -> Dump:
    groups = tuple(
        Group(group.group, group.enqueued, _collective_of(group.waits) if group.waits else None)
        for group in summary.groups
    )
    return Dump(summary.rank, groups)


def _collective_of(waits: Waits) -> Collective:
    return Collective(waits.seq, waits.op, waits.sizes, waits.types, waits.state, waits.frames)
