"""Find the first cause of a failure and its consequences in the output and exits of all ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..output.finding import Finding
from . import causes, recorder_lines, stacks, verdict
from .causes import Knowledge
from .confidence import rate_confidence
from .exits import Exit
from .fix_values import fill_in
from .ranking import rank_suspects
from .record import Command, RunRecord
from .refine import refine
from .scene import NO_RECORD, Scene, build_scene
from .signs import find_suspects, has_complained_of_peers
from .suspects import ENDING, SPECIFIC, Suspect, Suspects
from .tracebacks import INSTALLED, LoggedException
from .transcript import LogLine

MAX_FINDINGS = 4
MAX_CONSEQUENCES = 64
EVIDENCE_LINES = 6
EVIDENCE_WIDTH = 600
LAST_LINES = 3  # of a rank that ended without an error
SHELL_CODES = 126  # from here on, exit codes are those of shells: no such command, or a signal
FIND_EXIT = "Look for that exit in the script."
IF_NOT_THERE = "If it is not there, run again with `ddp-orch up --debug`."
RUN_AGAIN = "Run again with `ddp-orch up --debug`: torch and NCCL print more then."
READ_OUTPUT = "Read the whole output of the ranks: with `--debug`, torch and NCCL have printed more there."
READ_FIRST = "Read the first error shown, and the whole output of that rank."
TRACE = "See which command it is: start the script with `-- {shell}`."
TRACED = "The last line that begins with `+` is that command."


@dataclass(frozen=True)
class DamagedFile:
    """A file that the ranks could not read."""

    host: str
    path: str
    size: int  # bytes


@dataclass(frozen=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    """The first cause, then other candidates. Empty: no failure was found."""
    consequences: tuple[Finding, ...]
    earlier: tuple[tuple[int, Finding], ...] = ()
    """(attempt, why it failed) for attempts after which the run was restarted."""
    is_running: bool = False
    """The run still runs: the first cause is only likely."""
    damaged: tuple[DamagedFile, ...] = ()
    """What has to be out of the way before the run can start again."""

    def as_dict(self) -> dict[str, object]:
        earlier = [
            replace(finding, severity="warning", message=f"Attempt {attempt} failed: {finding.message}")
            for attempt, finding in self.earlier
        ]
        return {
            "findings": [finding.as_dict() for finding in (*self.findings, *earlier)],
            "consequences": [finding.as_dict() for finding in self.consequences],
        }


def diagnose(lines: Sequence[LogLine], record: RunRecord | None = None) -> Diagnosis:
    """`record`: what the hosts know of a failed run. Without it, the logs alone must show whether the job failed."""
    knowledge = causes.load_knowledge()
    *before, last = recorder_lines.split_attempts(lines) if record is None else [lines]
    own_lines, recorded = recorder_lines.split_off(last)
    own_lines, shown = stacks.split_off(
        own_lines,
        with_py_spy=record is not None and record.stalled,
        were_aborted=record is not None and record.were_aborted,
    )
    scene = build_scene(own_lines, record or NO_RECORD, recorded, shown)
    suspects, consequences = find_suspects(scene, knowledge)
    suspects = refine(suspects, scene)
    if record is None and not verdict.has_failed(scene, suspects, consequences):
        if before:
            return diagnose([line for attempt in before for line in attempt])
        noise = [suspect for suspect in suspects if suspect.code == "exit-barrier-noise"]
        return Diagnosis(tuple(_finding(suspect, scene, knowledge, "note") for suspect in noise[:1]), ())
    roots = [exit_.rank for exit_ in scene.exits if exit_.root]
    ranked = tuple(
        replace(suspect, confidence=rate_confidence(suspect, suspects, scene))
        for suspect in rank_suspects(suspects, roots, scene.record.first_rank)
    )
    findings = [_finding(suspect, scene, knowledge, "error") for suspect in ranked]
    silent = _find_silent_end(scene, knowledge)
    if not ranked or (silent is not None and _comes_first(silent, ranked[0])):
        findings = [_silent_end_finding(silent, scene, knowledge) if silent else _unknown(scene, knowledge), *findings]
    return Diagnosis(tuple(findings[:MAX_FINDINGS]), _consequences(consequences, findings[0]))


# --- findings


def _finding(suspect: Suspect, scene: Scene, knowledge: Knowledge, severity: Literal["error", "note"]) -> Finding:
    cause = knowledge.causes[suspect.code]
    host = suspect.host or (scene.ranks.get(suspect.rank) if suspect.rank is not None else None)
    evidence = _evidence(suspect)
    return Finding(
        severity,
        suspect.code,
        tuple(dict.fromkeys([*([host] if host else []), *suspect.also])),
        (suspect.meaning or cause.meaning) + (f" ({suspect.why})" if suspect.why else ""),
        fill_in(suspect.fix or cause.fix, evidence, suspect.exception.frames if suspect.exception else ()),
        evidence,
        suspect.rank,
        suspect.line.at if suspect.is_dated else scene.record.lost_at,
        suspect.confidence,
    )


def _evidence(suspect: Suspect) -> tuple[str, ...]:
    texts: list[str] = []
    if suspect.exception is not None:
        source = _source_of(suspect, suspect.exception)
        places = (*suspect.exception.places, *source.places)
        own = [place for place in places if not INSTALLED.search(place)]
        texts += (own or [place for place in places if "site-packages" not in place])[-1:]
        texts += [text.removesuffix(": ") for text in source.lines[:EVIDENCE_LINES] if text.strip()]
    if suspect.line.text.removesuffix(": ") not in texts:
        texts += suspect.line.text.splitlines()
        if suspect.exception is not None and suspect.line.text == suspect.exception.line.text:
            texts += [text for text in suspect.exception.lines[1:] if text.strip() and text not in texts]
    return tuple(shorten(text, EVIDENCE_WIDTH) for text in texts[:EVIDENCE_LINES])


def _source_of(suspect: Suspect, exception: LoggedException) -> LoggedException:
    """The exception to show: of a chain the one that the suspect is about, or else its beginning."""
    sources = exception.sources
    if suspect.code == "script-exception":
        return sources[0]
    return next((source for source in sources if suspect.line.text in source.lines), exception)


def shorten(text: str, width: int) -> str:
    """Keep the beginning and the end of a long text: the subject of a message is often at its end."""
    half = (width - 5) // 2
    return text if len(text) <= width else f"{text[:half]} ... {text[-half:]}"


# --- what the output does not explain


def _find_silent_end(scene: Scene, knowledge: Knowledge) -> Exit | None:
    """A rank that ended with an exit code without printing a reason or complaining about others.

    If there are several, the one that failed first, as the head saw it.
    """
    silent: list[Exit] = []
    for exit_ in scene.exits:
        if not exit_.root or exit_.code <= 0 or exit_.rank is None or exit_.line is None or exit_.agent:
            continue
        explained = any(
            exception.line.rank in (exit_.rank, None)
            for exception in scene.exceptions
            if not exception.agent and (exit_.number < 0 or exception.line.number < exit_.number)
        )
        if not explained and not has_complained_of_peers(exit_, scene, knowledge):
            silent.append(exit_)
    first_rank = scene.record.first_rank
    return next((exit_ for exit_ in silent if exit_.rank == first_rank), silent[0] if silent else None)


def _comes_first(silent: Exit, first: Suspect) -> bool:
    """Whether a rank's unexplained end comes before the best suspect."""
    if first.level < ENDING:
        return True
    return first.level < SPECIFIC and (silent.at or 0.0) < (first.line.at or 0.0)


def _silent_end_finding(silent: Exit, scene: Scene, knowledge: Knowledge) -> Finding:
    message = f"Rank {silent.rank} ended first, with exit code {silent.code} and no error."
    fix = READ_OUTPUT if scene.record.command.debug else RUN_AGAIN
    if silent.signal is None and silent.code < SHELL_CODES:
        why, fix = _explain_exit(silent.code, scene.record.command)
        message += f" {why}"
    else:
        message = f"{knowledge.causes['unknown'].meaning} {message}"
    hosts = (silent.host,) if silent.host else ()
    output = [line.text for line in scene.lines if line.rank == silent.rank and not knowledge.is_noise(line.text)]
    report = silent.line
    if report is not None:
        words = scene.last_words_of(report.source, silent.rank)
        output = output or [word.text[:EVIDENCE_WIDTH] for word in words if not knowledge.is_noise(word.text)]
    evidence = (*output[-LAST_LINES:], *([report.text.strip()] if report is not None else []))
    return Finding("error", "unknown", hosts, message, fix, evidence, silent.rank, silent.at, "low")


def _explain_exit(code: int, command: Command) -> tuple[str, str]:
    """What ends a rank with an exit code of its own, and what to do."""
    if not command.shell:
        why = f"The script or a library ended it, as by sys.exit({code}) or os._exit({code})."
        return why, FIND_EXIT if command.debug else f"{FIND_EXIT} {IF_NOT_THERE}"
    shell, *script = command.shell
    name = script[0] if script and not script[0].startswith("-") else "the shell script"
    why = f"A command in {name} returned that status, which ends a script with `set -e`, or {name} calls `exit {code}`."
    return why, TRACED if command.is_traced else TRACE.format(shell=" ".join((shell, "-x", *script)))


FAILURES = re.compile(
    r"exitcode|\bFAILED\b|core dumped|[Aa]borted|\bKilled\b|[Ee]rror\b|ERROR|[Ff]atal|CRITICAL|panic|"
    r"Traceback|CANCELLED|timed out|NCCL WARN|terminate called"
)
LAUNCHER_REPORTS = re.compile(r"closing signal|error_file|Sending process")
FIRST_LINES = 3


def _unknown(scene: Scene, knowledge: Knowledge) -> Finding:
    """The finding without a cause: it shows the first lines that look like errors."""
    cause = knowledge.causes["unknown"]
    lines = [
        line
        for line in scene.lines
        if FAILURES.search(line.text) and not knowledge.is_noise(line.text) and not LAUNCHER_REPORTS.search(line.text)
    ][:FIRST_LINES]
    evidence = tuple(line.text[:EVIDENCE_WIDTH] for line in lines)
    if not lines:
        fix = READ_OUTPUT if scene.record.command.debug else RUN_AGAIN
        return Finding("error", "unknown", (), cause.meaning, fix, confidence="low")
    first = lines[0]
    host = scene.host_of(first)
    message = f"{cause.meaning} The first error is shown."
    hosts = (host,) if host else ()
    fix = READ_FIRST if scene.record.command.debug else cause.fix
    return Finding("error", "unknown", hosts, message, fix, evidence, first.rank, first.at, "low")


# --- consequences


def _consequences(suspects: Suspects, first: Finding) -> tuple[Finding, ...]:
    """One finding for each rank or host that only reports the failure of another."""
    findings: dict[tuple[str | None, int | None], Finding] = {}
    for suspect in suspects:
        place = (suspect.host, suspect.rank)
        is_first = suspect.rank is not None and suspect.rank == first.rank
        if place in findings or is_first or suspect.line.text in first.evidence:
            continue
        text = suspect.line.text if suspect.exception is None else suspect.exception.lines[0]
        shown = text[:EVIDENCE_WIDTH]
        hosts = (suspect.host,) if suspect.host else ()
        code = _code_of_consequence(text, first)
        findings[place] = Finding("note", code, hosts, shown, "", (shown,), suspect.rank, suspect.line.at, "high")
    return tuple(findings.values())[:MAX_CONSEQUENCES]


def _code_of_consequence(text: str, first: Finding) -> str:
    if "transport/tcp/pair" in text:
        return "gloo-peer-lost"
    return "gloo-recv-timeout" if "unbound_buffer" in text else first.code
