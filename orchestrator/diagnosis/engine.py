"""Output and exits of all ranks -> the first cause, named, and what only follows from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..output.lines import rfc3339
from . import causes, own, refine, scene, signs, stacks, sureness, verdict
from .causes import Knowledge
from .exits import Exit
from .hangs import Confidence
from .scene import Scene
from .signs import DECISIVE, ENDING, FALLBACK, SPECIFIC, Suspect
from .sureness import SAME_TIME
from .transcript import Said

FIRST_TIME = 1e9  # s: a time before had no year
EVIDENCE_LINES = 6
EVIDENCE_WIDTH = 600


@dataclass(frozen=True)
class Finding:
    """The contract of `diagnose --json`."""

    severity: Literal["error", "warning", "note"]
    code: str
    hosts: tuple[str, ...]
    rank: int | None
    at: float | None
    confidence: Confidence
    message: str
    evidence: tuple[str, ...]
    fix: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "hosts": list(self.hosts),
            "rank": self.rank,
            "at": None if self.at is None or self.at < FIRST_TIME else rfc3339(self.at),
            "confidence": self.confidence,
            "message": self.message,
            "evidence": list(self.evidence),
            "fix": self.fix,
        }


@dataclass(frozen=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    """The first cause first; then what else may be one. Empty: no failure is to be seen."""
    consequences: tuple[Finding, ...]
    earlier: tuple[tuple[int, Finding], ...] = ()
    """Attempts that failed before, and why; the run was started again."""

    def as_dict(self) -> dict[str, Any]:
        earlier = [
            replace(finding, severity="warning", message=f"Attempt {attempt} failed: {finding.message}")
            for attempt, finding in self.earlier
        ]
        return {
            "findings": [finding.as_dict() for finding in (*self.findings, *earlier)],
            "consequences": [finding.as_dict() for finding in self.consequences],
        }


@dataclass(frozen=True)
class Known:
    """What a run's hosts know beyond its output."""

    exits: Sequence[Exit] = ()
    hosts: Sequence[str] = ()
    ranks: Mapping[int, str] | None = None
    oom_hosts: Sequence[str] = ()
    """Where the cgroup has counted a kill for want of memory."""
    dumps: Sequence[Mapping[str, Any]] = ()
    """Summaries of flight-recorder dumps (node/flight.py)."""
    lost: str | None = None
    """The host of which nothing was heard any more, where that was the first failure."""
    stopped_by: str | None = None
    """Who ended the run, where it was not a failure."""
    failed_at: float | None = None
    finished: Mapping[int, float] | None = None
    """When ranks ended with 0."""
    stalled: bool = False
    """No rank had printed for too long: the hosts have shown the stacks of all ranks, and ended them."""
    same_code: bool = False
    """All hosts have it from us, by the hash of its content."""


def diagnose(lines: Sequence[Said], known: Known | None = None) -> Diagnosis:
    """`known`: where the run is ours and has failed; else only the logs tell whether it has."""
    knowledge = causes.load()
    told = known or Known()
    *before, last = own.by_attempt(lines) if known is None else [lines]
    lines, ours = own.cut(last)
    lines, shown = stacks.cut(lines, with_py_spy=told.stalled)
    seen = scene.make(lines, told.exits, told.hosts, told.ranks)
    suspects, secondary = signs.find(seen, knowledge)
    suspects = refine.refine(suspects, seen)
    suspects = refine.with_known(suspects, seen, told.oom_hosts, told.stopped_by, told.failed_at)
    suspects += refine.ended_early(suspects, seen, told.finished or {}, told.failed_at)
    suspects += refine.lost_host(seen, told.lost, told.failed_at, own.lost(ours))
    if shown:  # what came after it we have done ourselves
        begun = shown[0].line
        suspects = [one for one in suspects if one.line.number < begun.number and (one.line.at or 0) < (begun.at or 1)]
    suspects += signs.of_dumps(told.dumps, seen) + signs.of_stacks(shown, seen)
    if told.same_code:
        suspects = refine.in_sent_code(suspects)
    trouble = known is not None or verdict.failed(seen, suspects, secondary)
    if not trouble and before:
        return diagnose([line for attempt in before for line in attempt])
    if not trouble:
        noise = [one for one in suspects if one.code == "exit-barrier-noise"]
        return Diagnosis(tuple(_finding(one, seen, knowledge, "note") for one in noise[:1]), ())
    roots = [one.rank for one in seen.exits if one.root]
    ranked = [replace(one, confidence=sureness.sure(one, suspects, seen)) for one in rank(suspects, roots)]
    findings = [_finding(one, seen, knowledge, "error") for one in ranked]
    silent = _ended_silently(seen, knowledge)
    if not ranked or (silent is not None and _before(silent, ranked[0])):
        findings = [_unknown(seen, knowledge), *findings]
    return Diagnosis(tuple(findings[:4]), _consequences(secondary, findings[0], seen))


# --- judgement


def rank(suspects: Sequence[Suspect], roots: Sequence[int | None] = ()) -> list[Suspect]:
    """The first cause first, one for each code. Signs of consequences are left out where there is a cause."""
    left = [one for one in suspects if one.level >= FALLBACK]
    found: list[Suspect] = []
    for low, high in ((DECISIVE, 1000), (SPECIFIC, DECISIVE), (ENDING, SPECIFIC), (FALLBACK, ENDING)):
        group = [one for one in left if low <= one.level < high and not one.hint]
        group = group or [one for one in left if low <= one.level < high and low >= ENDING]
        while group:
            first = _first(group, roots) if low >= ENDING else max(group, key=lambda one: (one.level, -one.line.number))
            same = [one for one in group if one.code == first.code]
            found.append(replace(first, also=tuple(sorted({one.host for one in same if one.host}))))
            group = [one for one in group if one.code != first.code and one.line.number != first.line.number]
        if found:
            break
    behind = [one for one in left if found and found[0].code in one.explains]
    return [behind[0], *found] if behind else found


def _first(group: Sequence[Suspect], roots: Sequence[int | None]) -> Suspect:
    """The earliest; of those about as early the one that says most, or whose end its launcher saw first."""
    dated = [one.line.at for one in group if one.line.at is not None]
    earliest = min(dated, default=None)
    if earliest is not None:
        group = [one for one in group if one.line.at is None or one.line.at <= earliest + SAME_TIME]
    best = max(one.level for one in group)
    sources = {one.line.source for one in group}
    if len(sources) == 1:
        # in one file the order of the lines tells more, but a traceback's own parts count as one
        first = min(one.line.number for one in group)
        near = [one for one in group if one.line.number <= first + 3]
        best = max(one.level for one in near)
        group = near
    return min((one for one in group if one.level == best), key=lambda one: (one.rank not in roots, one.line.number))


FAILURES = re.compile(
    r"exitcode|\bFAILED\b|core dumped|[Aa]borted|\bKilled\b|[Ee]rror\b|ERROR|[Ff]atal|CRITICAL|panic|"
    r"Traceback|CANCELLED|timed out|NCCL WARN|terminate called"
)


def _finding(one: Suspect, seen: Scene, knowledge: Knowledge, severity: Literal["error", "note"]) -> Finding:
    cause = knowledge.causes[one.code]
    message = cause.meaning + (f" ({one.why})" if one.why else "")
    host = one.host or (seen.ranks.get(one.rank) if one.rank is not None else None)
    hosts = tuple(dict.fromkeys([*([host] if host else []), *one.also]))
    evidence = _evidence(one)
    return Finding(severity, one.code, hosts, one.rank, one.line.at, one.confidence, message, evidence, cause.fix)


def _evidence(one: Suspect) -> tuple[str, ...]:
    texts = []
    if one.raised is not None:
        places = [frame for frame in one.raised.frames if frame.startswith('File "') and "site-packages" not in frame]
        texts += places[-1:]
        texts += [text for text in one.raised.lines[:EVIDENCE_LINES] if text.strip()]
    if one.line.text not in texts:
        texts += one.line.text.splitlines()
    return tuple(shortened(text, EVIDENCE_WIDTH) for text in texts[:EVIDENCE_LINES])


def shortened(text: str, most: int) -> str:
    """Its beginning and its end: what a long message is about is often at its end."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def _before(silent: Exit, first: Suspect) -> bool:
    """Whether a rank's unexplained end comes before the best sign there is."""
    if first.level < ENDING:
        return True
    return first.level < SPECIFIC and (silent.at or 0.0) < (first.line.at or 0.0)


def _ended_silently(seen: Scene, knowledge: Knowledge) -> Exit | None:
    """A rank that ended with an exit code, said nothing of why, and did not complain of others either."""
    for one in seen.exits:
        if one.root and one.code > 0 and one.rank is not None and one.line is not None and not one.agent:
            before = [raised for raised in seen.raised if one.number < 0 or raised.line.number < one.number]
            said = any(raised.line.rank in (one.rank, None) for raised in before if not raised.agent)
            if not said and not signs.complains(seen, one, knowledge):
                return one
    return None


def _unknown(seen: Scene, knowledge: Knowledge) -> Finding:
    cause = knowledge.causes["unknown"]
    silent = _ended_silently(seen, knowledge)
    if silent is not None and silent.line is not None:
        message = f"{cause.meaning} The first to end was rank {silent.rank}, with exit code {silent.code} and no error."
        hosts = (silent.host,) if silent.host else ()
        own = [line.text for line in seen.lines if line.rank == silent.rank]
        own = own or [line.text[:EVIDENCE_WIDTH] for line in seen.last_words if line.source == silent.line.source]
        evidence = (*own[-3:], silent.line.text.strip())
        return Finding("error", "unknown", hosts, silent.rank, silent.at, "low", message, evidence, cause.fix)
    lines = [line for line in seen.lines if FAILURES.search(line.text) and not knowledge.noise.search(line.text)]
    shown = [line for line in lines if not re.search(r"closing signal|error_file|Sending process", line.text)][:3]
    first = shown[0] if shown else None
    message = cause.meaning + (" The first error is shown." if first else "")
    host = seen.host(first) if first else None
    evidence = tuple(line.text[:EVIDENCE_WIDTH] for line in shown)
    return Finding(
        "error",
        "unknown",
        (host,) if host else (),
        first.rank if first else None,
        first.at if first else None,
        "low",
        message,
        evidence,
        cause.fix,
    )


def _consequences(secondary: Sequence[Suspect], first: Finding, seen: Scene) -> tuple[Finding, ...]:
    """One for each rank (or host) that only tells of another's failure."""
    found: dict[tuple[str | None, int | None], Finding] = {}
    for one in secondary:
        key = (one.host, one.rank)
        if key in found or (one.rank is not None and one.rank == first.rank) or one.line.text in first.evidence:
            continue
        text = one.raised.lines[0] if one.raised is not None else one.line.text
        hosts = (one.host,) if one.host else ()
        code = (
            "gloo-peer-lost"
            if "transport/tcp/pair" in text
            else "gloo-recv-timeout"
            if "unbound_buffer" in text
            else first.code
        )
        found[key] = Finding(
            "note", code, hosts, one.rank, one.line.at, "high", text[:EVIDENCE_WIDTH], (text[:EVIDENCE_WIDTH],), ""
        )
    return tuple(found.values())[:64]
