"""Output and exits of all ranks -> the first cause, named, and what only follows from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .diagnosis import causes, hangs, refine, scene, signs, sureness
from .diagnosis.causes import Knowledge
from .diagnosis.exits import Exit
from .diagnosis.hangs import FINISHED, Confidence
from .diagnosis.scene import STEPS, Scene
from .diagnosis.signs import DECISIVE, ENDING, FALLBACK, SPECIFIC, Suspect
from .diagnosis.sureness import SAME_TIME
from .diagnosis.transcript import Said
from .logs import rfc3339

FIRST_TIME = 1e9  # s: a time before had no year
EVIDENCE_LINES = 6
EVIDENCE_WIDTH = 300


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

    def as_dict(self) -> dict[str, Any]:
        return {
            "findings": [finding.as_dict() for finding in self.findings],
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
    same_code: bool = False
    """All hosts have it from us, by the hash of its content."""


def diagnose(lines: Sequence[Said], known: Known | None = None) -> Diagnosis:
    """`known`: where the run is ours and has failed; else only the logs tell whether it has."""
    knowledge = causes.load()
    told = known or Known()
    seen = scene.make(lines, told.exits, told.hosts, told.ranks)
    suspects, secondary = signs.find(seen, knowledge)
    suspects = refine.refine(suspects, seen)
    suspects = refine.with_known(suspects, seen, told.oom_hosts, told.lost, told.stopped_by, told.failed_at)
    suspects += signs.of_dumps(told.dumps, seen)
    if told.same_code:
        suspects = [one for one in suspects if one.code != "code-version-skew"]
    trouble = known is not None or (_failed(seen, suspects, secondary) and not _ended_well(seen, suspects))
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


COMPLAINTS = re.compile(
    r"NCCL WARN|A worker died or was killed|^NCCL error|srun: error|slurmstepd: error|terminate called|core dumped"
)
FATAL = re.compile(r"(?i)^\W*(?:\w+: |\[\w+\] ?)?(?:fatal|critical|error|panic|aborted)\b(?! ?=)")
LOSS = re.compile(r"(?i)(?<![a-z])loss\S*[\s=:'\"]+\(?(?:(?P<lost>-?(?:nan|inf)\b)|-?\d)")
LAST_WORDS = 12  # lines at the end of all; a failure is there, if it is anywhere
BROKEN_OFF = 4  # lines at the end; a traceback that begins there is not told to its end
FAILURES = re.compile(
    r"exitcode|\bFAILED\b|core dumped|[Aa]borted|\bKilled\b|[Ee]rror\b|ERROR|[Ff]atal|CRITICAL|panic|"
    r"Traceback|CANCELLED|timed out|NCCL WARN|terminate called"
)


def _failed(seen: Scene, suspects: Sequence[Suspect], secondary: Sequence[Suspect]) -> bool:
    """Whether the logs show a failure at all."""
    if any(one.level >= ENDING and not one.hint for one in suspects):
        return True
    losses = [found for line in seen.lines[-LAST_WORDS:] if (found := LOSS.search(line.text))]
    if len(losses) > 1 and all(one["lost"] for one in losses[-2:]):
        return True  # it may well go on to its end, in vain
    if any(one.code != 0 and one.line is not None for one in seen.exits):
        return True
    if any("exit_barrier" not in "".join(one.frames) and not seen.goes_on(one) for one in seen.raised):
        return True
    if any("Traceback (most recent" in line.text for line in seen.lines[-BROKEN_OFF:]):
        return True
    healthy = any(one.code == "exit-barrier-noise" for one in suspects)
    if healthy:
        return False
    if any(one.level >= 18 and not one.hint for one in suspects):
        return True
    if any(COMPLAINTS.search(line.text) for line in seen.lines):
        return True
    last = seen.lines[-LAST_WORDS:]
    went_well = any(STEPS.search(line.text) or FINISHED.search(line.text) for line in last)
    blames = {one.line.number for one in secondary if one.raised is None or not seen.goes_on(one.raised)}
    return not went_well and any(FATAL.search(line.text) or line.number in blames for line in last)


WELL = re.compile(r"(?i)\b(?:finish(?:ed)?|complet(?:ed?|ion)|done|success(?:ful(?:ly)?)?|succeeded)\b")
NONE = re.compile(
    r"(?i)\b(?:errors?|failed|failures?|warnings?)\W{0,2}\s?0(?!\d)|\b(?:no|0) (?:errors?|failures?|warnings?)\b"
)
STATUS = re.compile(r"(?i)\b(?:with|code|status)\W{0,3}-?[1-9]")  # finished with 137
EXIT_0 = re.compile(r"(?i)\bexit(?:ed|s)?(?: with)?(?: status| code)?\W{0,2}\s?0$")


def _ended_well(seen: Scene, suspects: Sequence[Suspect]) -> bool:
    """Whether all that was bad was overcome: after it each file goes on, and tells of a good end.

    A good end is an exit status of 0, where something was said between that and what was bad (`| tee` has one too), or
    the word of every rank that is known. Not where a launcher has given up.
    """
    if any(one.kind.endswith("ChildFailedError") for one in seen.raised):
        return False
    last_bad: dict[str, int] = {}
    bad = [one.line for one in suspects if one.level >= ENDING and not one.hint]
    bad += [one.line for one in seen.exits if one.code != 0 and one.line is not None]
    for line in [*bad, *(one.line for one in seen.raised)]:
        last_bad[line.source] = max(line.number, last_bad.get(line.source, 0))
    return bool(last_bad) and all(
        _goes_well([line for line in seen.lines if line.source == source and line.number > number], seen)
        for source, number in last_bad.items()
    )


def _goes_well(after: Sequence[Said], seen: Scene) -> bool:
    last = after[-LAST_WORDS:]
    good = [
        line
        for line in last
        if WELL.search(line.text) and not (scene.TROUBLE.search(NONE.sub("", line.text)) or STATUS.search(line.text))
    ]
    if not good:
        return False
    if any(EXIT_0.search(line.text.strip()) for line in last[-2:]):
        return True
    speakers = {rank for line in good for rank in (line.rank, hangs.speaker(line)) if rank is not None}
    if not seen.ranks:  # nobody says which rank he is: several say it, of all hosts, and it is the last word
        hosts = {line.host for line in seen.lines if line.source == good[0].source}
        return len(good) > 1 and hosts == {line.host for line in good} and good[-1] is last[-1]
    return speakers >= {rank for rank, host in seen.ranks.items() if host in (None, good[0].host)}


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
        texts.append(one.line.text)
    return tuple(text[:EVIDENCE_WIDTH] for text in texts[:EVIDENCE_LINES])


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
