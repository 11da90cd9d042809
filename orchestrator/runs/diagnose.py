"""Diagnose one run: collect its logs and the evidence of its hosts. orchestrator/diagnosis finds the cause."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace

from ..answers.evidence import EVIDENCE, PATHS, DumpSummary, Evidence, Waits
from ..answers.recorded import RECORD, Event, Record
from ..answers.runs import Failure, Part, Verdict
from ..diagnosis import missing
from ..diagnosis.dumps import Collective, Dump, Group
from ..diagnosis.engine import Diagnosis, diagnose
from ..diagnosis.exits import Exit
from ..diagnosis.record import UNKNOWN_COMMAND, Command, RunRecord
from ..diagnosis.recorder_lines import DRAINS, SAYS_DROPPED, attempt_of_dropped
from ..diagnosis.transcript import LogLine, strip_torch_tags
from ..diagnosis.uneven_resume import find_uneven_resume, with_uneven_resume
from ..diagnosis.unfinished import diagnose_unfinished
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.console import fold
from ..output.finding import Finding
from ..output.lines import Line
from ..output.mask import Mask
from ..output.pipeline import Sink
from ..output.span import ALL, Span
from . import (
    damaged_snapshots,
    kept_back,
    missing_modules,
    missing_ranks,
    own_addresses,
    port_users,
    recent,
    rejoining,
    shell_scripts,
    timeline,
)
from .follow import LogFilter, View

LINES = 100_000  # of all streams together
LINES_PER_STREAM = 200, 4000  # the fewest and the most last lines of each stream
MAX_EARLIER_ATTEMPTS = 10
OF_OTHERS = ("sigterm-preempted", "unknown")
"""What an attempt seems to have failed of if a host was drained or lost, and no line says so."""


def gather_and_diagnose(
    run_id: str,
    parts: Mapping[str, Part],
    nodes: Mapping[str, int],
    hosts: Mapping[str, Host],
    fleet: Fleet,
    mask: Mask,
    span: Span = ALL,
) -> Diagnosis:
    """Collect the evidence of all hosts and diagnose it. Hosts that do not answer lower the confidence.

    `parts`: the answers of the hosts about the run (registry.py); `nodes`: the node number of each host. `mask`: no
    line is cut inside of a secret; the caller masks the diagnosis. `span`: only failures in it count, by the clock of
    the head.
    """
    parts = {host: parts[host] for host in nodes if host in parts and host in hosts}
    if claims.is_abandoned(parts, nodes):
        fix = rejoining.advise(run_id, parts)
        return Diagnosis((Finding("error", "host-lost", tuple(parts), claims.ABANDONED, fix, confidence="high"),), ())
    verdict = claims.verdict_of(parts, nodes)
    failed = verdict is not None and verdict.state not in ("succeeded", "stopped") and _ended_in(span, verdict, parts)
    head = claims.head_of(parts.values())
    first = min(parts, key=lambda host: (nodes[host] != head, nodes[host]), default=None)
    attempt = parts[first].attempt if first is not None else 0
    restarting = first is not None and parts[first].state in ("restarting", "waiting")
    if first is not None and parts[first].lacks_guard and any(part.unfinished for part in parts.values()):
        restarting = True  # the head was restarted, and the other hosts wait for it
    is_running = verdict is None and not restarting and any(part.state == "running" for part in parts.values())
    if not failed and attempt < 2 and not restarting and not is_running:
        return Diagnosis((), ())
    run_hosts = [hosts[host] for host in parts]
    evidence, lines = _gather(run_id, parts, nodes, run_hosts, fleet, mask, span)
    same_code = not any(host.workdir for host in run_hosts)
    command = shell_scripts.describe_command(run_id)
    diagnosis = Diagnosis((), ())
    resume = parts[first].resume if first is not None else "none"
    at_start = {host: part.host in part.had_outputs for host, part in parts.items() if part.node_rank is not None}
    empty = [host for host, part in parts.items() if not (part.outputs or part.shared_output)]

    def find_earlier_cause(known: Mapping[str, Evidence], number: int, lost: timeline.Loss | None) -> Finding:
        finding = diagnose_earlier_attempt(lines, known, number, same_code, lost, command)
        uneven = find_uneven_resume(lines, number, LINES_PER_STREAM[0], empty, resume, at_start)
        return with_uneven_resume([finding], uneven, restarted=False)[0]

    if verdict is not None and failed:
        ranks = claims.newest_ranks(parts, nodes)
        restarted = [host for host, part in parts.items() if part.lacks_guard]
        diagnosis = diagnose_last_attempt(
            lines,
            verdict,
            evidence,
            ranks,
            attempt=attempt,
            same_code=same_code,
            without_guard=restarted,
            command=command,
        )
        looked_for = _look_for_file(run_id, diagnosis.findings, run_hosts, fleet, resume)
        diagnosis = replace(diagnosis, findings=port_users.explain(looked_for, run_id, run_hosts, fleet))
        shared = [host for host, part in parts.items() if part.shared_output]
        diagnosis = damaged_snapshots.explain(diagnosis, run_id, run_hosts, shared, fleet)
        uneven = find_uneven_resume(lines, attempt, LINES_PER_STREAM[0], empty, resume, at_start)
        found = with_uneven_resume(diagnosis.findings, uneven, restarted=attempt > 1)
        diagnosis = replace(diagnosis, findings=found)
        if same_code:
            logged = _lines_of_attempt(lines, evidence, attempt)
            diagnosis = own_addresses.explain(kept_back.explain(diagnosis, run_id), run_id, logged)
        diagnosis = _doubt(diagnosis, _silent_hosts(parts, nodes, evidence), parts, verdict)
    elif is_running:
        logged = _lines_of_attempt(lines, evidence, attempt)
        ranks = claims.newest_ranks(parts, nodes)
        diagnosis = diagnose_unfinished(logged, ranks, _finished(evidence, ranks, attempt))
        if same_code:
            diagnosis = own_addresses.explain(diagnosis, run_id, logged)
    newest_ended = attempt if verdict is None and restarting else attempt - 1
    earlier = _find_earlier_causes(
        _earlier_attempts(lines, evidence, newest_ended, span),
        evidence,
        find_earlier_cause,
        lambda: (_recorded_events(run_id, nodes, head, run_hosts, fleet), next(iter(parts.values())).hosts),
    )
    diagnosis = missing_ranks.explain(replace(diagnosis, earlier=earlier), run_id, run_hosts, fleet)
    started = recent.started(run_id)
    return missing_modules.explain(diagnosis, hosts, started.code if started and same_code else "")


def _earlier_attempts(
    lines: Sequence[Line], evidence: Mapping[str, Evidence], newest: int, span: Span
) -> Sequence[int]:
    """The attempts that failed, up to the newest one that has ended, but for those that a drained host ended."""
    failed_in_span = {failure.attempt for answer in evidence.values() for failure in answer.failures}
    known = {line.attempt for line in lines if not span.is_limited or line.attempt in failed_in_span}
    known |= {number for number in failed_in_span if number is not None}  # also those whose lines are not the last ones
    drained = {line.attempt for line in lines if line.stream == "agent" and DRAINS.match(line.text)}
    ended = sorted(number for number in known - drained if number <= newest)
    return [*ended[:1], *ended[1:][1 - MAX_EARLIER_ATTEMPTS :]]


def _find_earlier_causes(
    attempts: Sequence[int],
    evidence: Mapping[str, Evidence],
    find_cause: Callable[[Mapping[str, Evidence], int, timeline.Loss | None], Finding],
    ask_for_events: Callable[[], tuple[Sequence[Event], Sequence[str]]],
) -> tuple[tuple[int, Finding], ...]:
    """Why each attempt failed, by its lines; if that is not sure, by the events of the run too.

    `find_cause`: its last argument is what the attempt has lost first. `ask_for_events`: gives the names of
    the nodes too.
    """
    causes = tuple((number, find_cause(evidence, number, None)) for number in attempts)
    if not any(_may_be_of_others(finding) for _, finding in causes):
        return causes
    events, names = ask_for_events()
    lost, failed = timeline.lost_first(events, names), timeline.failed_first(events, names)
    drained = timeline.drained_attempts(events)
    evidence = _add_failures(evidence, failed)
    return tuple(
        (number, find_cause(evidence, number, lost.get(number)))
        if (number in lost or number in failed) and _may_be_of_others(finding)
        else (number, finding)
        for number, finding in causes
        if number not in drained
    )


def _may_be_of_others(finding: Finding) -> bool:
    """Whether an attempt may have ended because of a host that is off now, so that no line says so."""
    return finding.code in OF_OTHERS or (finding.confidence != "high" and finding.code != "host-lost")


def _add_failures(evidence: Mapping[str, Evidence], first: Mapping[int, tuple[str, Failure]]) -> dict[str, Evidence]:
    """The evidence, with what the head has recorded of first failures on hosts that could not be asked or record them.

    A host with a full disk cannot.
    """
    result = dict(evidence)
    for attempt, (host, failure) in first.items():
        known = result.get(host, Evidence((), (), 0, ()))
        if not any(other.attempt in (None, attempt) for other in known.failures):
            result[host] = replace(known, failures=(*known.failures, replace(failure, attempt=attempt)))
    return result


def _recorded_events(
    run_id: str, nodes: Mapping[str, int], head: int, hosts: Sequence[Host], fleet: Fleet
) -> Sequence[Event]:
    """The events of the run, as `events` shows them."""

    def ask(_: Host, session: Session) -> Record:
        return session.request(RECORD, {"run_id": run_id})

    records = fleet.each(hosts, ask, "asking for the events").done
    source = timeline.source(nodes, head, records)
    return records[source].events if source else ()


def _ended_in(span: Span, verdict: Verdict, parts: Mapping[str, Part]) -> bool:
    if not span.is_limited:
        return True
    ends = [part.ended_at for part in parts.values() if part.ended_at is not None]
    at = verdict.first_failure.at if verdict.first_failure else min(ends, default=None)
    return at is None or span.holds(at)


def _gather(
    run_id: str,
    parts: Mapping[str, Part],
    nodes: Mapping[str, int],
    hosts: Sequence[Host],
    fleet: Fleet,
    mask: Mask,
    span: Span,
) -> tuple[dict[str, Evidence], list[Line]]:
    """The evidence of the hosts, and the last lines of each stream. All times are by the clock of the first host."""

    def ask(_: Host, session: Session) -> Evidence:
        return session.request(EVIDENCE, {"run_id": run_id})

    answers = fleet.each(hosts, ask, "collecting evidence").done
    streams = sum(2 * part.nproc + 1 for part in parts.values())
    fewest, most = LINES_PER_STREAM
    tail = max(fewest, min(most, LINES // streams))
    log_filter = LogFilter(follow=False, tail=tail, since=span.first, until=span.last)
    lines: list[Line] = []
    ranks = claims.ranks_of(parts, nodes)
    view = View(run_id, hosts, log_filter, fleet, lambda _: None, ranks=ranks, kept=True, mask=mask)
    view.run(Sink(lines.extend))
    shifted = {host: _shift_clock(answer, view.ahead.get(host, 0.0)) for host, answer in answers.items()}
    return {host: _limit(answer, span) for host, answer in shifted.items()}, lines


def _limit(answer: Evidence, span: Span) -> Evidence:
    return replace(
        answer,
        failures=tuple(failure for failure in answer.failures if span.holds(failure.at)),
        kernel=tuple(line for line in answer.kernel if span.holds(line.at)),
        finished=tuple(end for end in answer.finished if span.holds(end.at)),
    )


def _shift_clock(answer: Evidence, ahead: float) -> Evidence:
    return replace(
        answer,
        failures=tuple(replace(failure, at=failure.at - ahead) for failure in answer.failures),
        kernel=tuple(replace(line, at=line.at - ahead) for line in answer.kernel),
        finished=tuple(replace(end, at=end.at - ahead) for end in answer.finished),
    )


def _silent_hosts(parts: Mapping[str, Part], nodes: Mapping[str, int], answered: Collection[str]) -> list[str]:
    """The hosts of the run, by its own names, that have not answered."""
    names = next(iter(parts.values())).hosts
    known = {nodes[host] for host in parts if host in answered}
    return [name for node, name in enumerate(names) if node not in known]


def _doubt(diagnosis: Diagnosis, silent: Sequence[str], parts: Mapping[str, Part], verdict: Verdict) -> Diagnosis:
    """Lower the confidence if hosts are silent, because one of them may have failed first.

    The head knows which rank failed first. If that rank is on a host that answered, nothing is missing; of a silent
    host, the head knows only the last line.
    """
    if not silent or not diagnosis.findings:
        return diagnosis
    head = claims.head_of(parts.values())
    by_head = any(part.node == head and part.verdict for part in parts.values())
    failure = verdict.first_failure if by_head else None
    first, *others = diagnosis.findings
    message = first.message
    if not failure or (first.hosts[:1], first.rank) != ((failure.host,), failure.rank):
        message += f" ({fold(silent)} could not be asked, and may have failed first.)"
    elif failure.host not in silent:
        return diagnosis
    confidence = "medium" if first.confidence == "high" else first.confidence
    return replace(diagnosis, findings=(replace(first, confidence=confidence, message=message), *others))


def _look_for_file(
    run_id: str, findings: tuple[Finding, ...], hosts: Sequence[Host], fleet: Fleet, resume: str
) -> tuple[Finding, ...]:
    """If the first cause is a missing file, ask every host whether it has that file. `resume`: run.resume."""
    path = missing.path_of(findings[0]) if findings else None
    if path is None:
        return tuple(map(missing.explain_tilde, findings))

    def ask(_: Host, session: Session) -> str | None:
        return session.request(PATHS, {"run_id": run_id, "paths": [path]}).paths[path]

    answers = fleet.each(hosts, ask, f"looking for {path}").done
    first = missing.check_hosts(findings[0], path, answers, [host.name for host in hosts], resume)
    return (first, *(finding for finding in findings[1:] if finding.code != first.code))


def diagnose_last_attempt(
    lines: Sequence[Line],
    verdict: Verdict,
    answers: Mapping[str, Evidence],
    ranks: Mapping[int, str],
    *,
    attempt: int | None = None,
    same_code: bool = False,
    without_guard: Sequence[str] = (),
    command: Command = UNKNOWN_COMMAND,
) -> Diagnosis:
    """Why the run ended, as its last attempt shows.

    `answers`: the evidence by host. `same_code`: ddp-orch sent the same code to all hosts. `without_guard`: hosts that
    were restarted, or whose guard was killed, before the run was over.
    """
    last = attempt or max((line.attempt for line in lines), default=1)
    first = verdict.first_failure
    failures = _failures(answers, last)
    if first and not any(failure.at == first.at for _, failure in failures):
        failures.append((first.host, first))
    record = RunRecord(
        exits=_exits(failures),
        hosts=tuple(answers),
        ranks=ranks,
        oom_hosts=tuple(host for host, answer in answers.items() if answer.oom_kills),
        dumps=[dump_of(summary) for answer in answers.values() for summary in answer.dumps],
        lost=first.host if first and first.lost else None,
        lost_at=first.at if first and first.lost else None,
        without_guard=without_guard,
        stopped_by=verdict.stopped_by if verdict.state == "killed" else None,
        failed_at=min((failure.at for _, failure in failures), default=None),
        first_rank=first.rank if first else None,
        finished=_finished(answers, ranks, last),
        stalled=bool(first and first.stalled),
        same_code=same_code,
        command=command,
    )
    logged = _lines_of_attempt(lines, answers, last)
    if (
        first and first.said and first.host not in answers
    ):  # the host is silent, but the head knows the last line of the rank
        line = LogLine(0, first.host, first.host, first.rank, first.at, first.said, None, False, last, "stderr")
        logged.append(strip_torch_tags(line, len(logged)))
    return diagnose(logged, record)


def _finished(answers: Mapping[str, Evidence], ranks: Mapping[int, str], attempt: int) -> dict[int, float]:
    """When ranks ended with exit code 0."""
    return {
        end.rank: end.at
        for host, answer in answers.items()
        for end in answer.finished
        if end.attempt == attempt and ranks.get(end.rank) == host
    }


def diagnose_earlier_attempt(
    lines: Sequence[Line],
    answers: Mapping[str, Evidence],
    attempt: int,
    same_code: bool,
    lost: timeline.Loss | None = None,
    command: Command = UNKNOWN_COMMAND,
) -> Finding:
    """Why an attempt failed before the run was restarted. `lost`: the host that the run lost first."""
    failures = _failures(answers, attempt)
    first = min((failure for _, failure in failures), key=lambda failure: failure.at, default=None)
    failed_at, rank = (first.at, first.rank) if first else (None, None)
    record = RunRecord(
        _exits(failures), tuple(answers), failed_at=failed_at, first_rank=rank, same_code=same_code, command=command
    )
    record = replace(record, lost=lost.host, lost_at=lost.at) if lost else record
    return diagnose(_lines_of_attempt(lines, answers, attempt), record).findings[0]


def _failures(answers: Mapping[str, Evidence], attempt: int) -> list[tuple[str, Failure]]:
    return [
        (host, failure)
        for host, answer in answers.items()
        for failure in answer.failures
        if failure.attempt in (None, attempt)
    ]


def _exits(failures: Sequence[tuple[str, Failure]]) -> list[Exit]:
    return [exit_of(host, failure) for host, failure in failures if failure.exit_code is not None or failure.signal]


def _lines_of_attempt(lines: Sequence[Line], answers: Mapping[str, Evidence], attempt: int) -> list[LogLine]:
    """The output of an attempt, and the kernel messages during it.

    A recorder that knows of no attempt, as after a reboot of its host, counts its lines as those of the first one.
    """
    ended = min((line.at for line in lines if line.attempt > attempt), default=float("inf"))
    output = [line for line in lines if _is_of_attempt(line, attempt, ended)]
    logged = [
        LogLine(
            0, line.host, line.host, line.rank, line.at, line.text, None, line.stream == "agent", attempt, line.stream
        )
        for line in output
    ]
    begun = min((line.at for line in output), default=0.0) if attempt > 1 else 0.0
    for host, answer in answers.items():
        logged += [
            LogLine(0, host, host, None, line.at, line.text, None, True, attempt)
            for line in answer.kernel
            if begun <= line.at < ended
        ]
        # the recorder says so too, once there is room for that
        logged += [
            LogLine(0, host, host, None, None, SAYS_DROPPED.format(**asdict(dropped)), None, True, attempt)
            for dropped in answer.dropped
            if dropped.attempt == attempt
        ]
    logged.sort(key=lambda line: line.at or 0.0)
    return [strip_torch_tags(line, number) for number, line in enumerate(logged)]


def _is_of_attempt(line: Line, attempt: int, ended: float) -> bool:
    if line.stream != "agent":
        return line.attempt == attempt
    of_dropped = attempt_of_dropped(line.text)
    return of_dropped == attempt if of_dropped is not None else line.attempt == attempt and line.at < ended


def exit_of(host: str, failure: Failure) -> Exit:
    name = failure.signal
    known = isinstance(name, str) and name in signal.Signals.__members__
    code = -signal.Signals[str(name)].value if known else failure.exit_code or 1
    line = LogLine(-1, host, host, failure.rank, failure.at, str(failure))
    agent = failure.rank is None
    return Exit(code, -1, host, failure.rank, failure.at, failure.pid, line, None, not agent, agent, failure.requested)


def dump_of(summary: DumpSummary) -> Dump:
    groups = tuple(
        Group(group.group, group.enqueued, _collective_of(group.waits) if group.waits else None)
        for group in summary.groups
    )
    return Dump(summary.rank, groups)


def _collective_of(waits: Waits) -> Collective:
    return Collective(waits.seq, waits.op, waits.sizes, waits.types, waits.state, waits.frames)
