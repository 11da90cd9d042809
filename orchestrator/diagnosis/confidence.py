"""How sure a first cause may be called, by the kind of evidence that it rests on. Pure. See docs/diagnose.md.

A signature shows what an error means, not whether this error ended the run. `high` is left for evidence that does not
mislead: what the kernel, the scheduler, ssh or the run's guards report of an end; an exception that nobody caught, that
names itself and that no other rank disputes; the last words of a program that then ended; a crash whose signal the
launcher reports. Everything else is `medium` at most, however well its words match.
"""

from __future__ import annotations

import re

from ..output.finding import Confidence
from .scene import Scene
from .suspects import DECISIVE, ENDING, FALLBACK, SPECIFIC, Suspect, Suspects
from .tracebacks import INSTALLED, LoggedException
from .transcript import LogLine

# mistakes in the language itself, which always mean the same; other exceptions have a meaning that is not known here
PLAIN = re.compile(
    r"(?:^|\.)(?:NameError|UnboundLocalError|KeyError|IndexError|ZeroDivisionError|TypeError|AttributeError|"
    r"NotImplementedError|RecursionError|StopIteration|OverflowError)$"
)
# the meaning of these depends on what is on the other hosts, or on who did it
ELSEWHERE = {
    "dataset-missing": r"No such file|Not a directory|not exist|not found",
    "script-import-error": r"No module named|cannot import name",
    "port-in-use": r".",
    "file-permission-denied": r".",
}
SAME_TIME = 2.0  # s within which clocks and torchrun's polling do not show the order
CRASHES = re.compile(r"\bsignal (?:11|7|4)\b")
OF_AGENT = re.compile(r"death signal|got signal")


def rate_confidence(suspect: Suspect, suspects: Suspects, scene: Scene) -> Confidence:
    """`suspects`: all of them. Never more than the suspect's own confidence."""
    if suspect.level < ENDING or suspect.hint:
        return "low" if suspect.confidence == "high" else suspect.confidence
    if suspect.confidence != "high" or suspect.level >= DECISIVE:
        return suspect.confidence
    if _is_disputed(suspect, suspects):
        return "medium"
    if suspect.level < SPECIFIC:
        is_sure = CRASHES.search(suspect.why) is not None or _is_reported_hangup(suspect)
    elif not suspect.meaning and _depends_on_others(suspect, scene):
        is_sure = False
    elif suspect.exception is not None:
        is_sure = _names_itself(suspect, suspect.exception)
    else:
        is_sure = _has_last_word(suspect.line, scene)
    return "high" if is_sure else "medium"


def _is_reported_hangup(suspect: Suspect) -> bool:
    return suspect.code == "sighup-session-closed" and OF_AGENT.search(suspect.line.text) is not None


def _is_disputed(suspect: Suspect, suspects: Suspects) -> bool:
    """Whether another error, of another kind, may have come first."""
    least = SPECIFIC if suspect.level >= ENDING else FALLBACK
    own = {other.line.text for other in suspects if other.code == suspect.code}
    return any(
        other.code != suspect.code
        and not other.hint
        and other.level >= least
        and other.line.text not in own
        and (other.exception is None or other.exception is not suspect.exception)
        and not _is_surely_later(other.line, suspect.line)
        for other in suspects
    )


def _is_surely_later(other: LogLine, line: LogLine) -> bool:
    """Whether one line was written after another: by the clock, or in the same stream."""
    if other.at is not None and line.at is not None and other.at > line.at + SAME_TIME:
        return True
    streams = [(each.source, each.host, each.rank, each.stream) for each in (other, line)]
    return streams[0] == streams[1] and other.number > line.number


def _depends_on_others(suspect: Suspect, scene: Scene) -> bool:
    """Whether the error would have another name if more of the other hosts were known."""
    pattern = ELSEWHERE.get(suspect.code)
    if pattern is None or not re.search(pattern, suspect.line.text):
        return False
    kind = suspect.exception.kind if suspect.exception is not None else None
    raising = {other.line.rank for other in scene.exceptions if not other.agent and other.kind == kind}
    return len(scene.ranks) < 2 or not set(scene.ranks) <= raising


def _names_itself(suspect: Suspect, exception: LoggedException) -> bool:
    """In the first words of the exception, not in what it happens to quote or in another one of its chain."""
    if exception.thread or exception.own_words or (exception.during and exception.chain):
        return False
    if suspect.code == "script-exception" and not suspect.meaning:
        root = exception.chain[0] if exception.chain else exception
        in_own_code = bool(exception.places) and not INSTALLED.search(exception.places[-1])
        return bool(PLAIN.search(root.kind)) and in_own_code
    return any(suspect.line.text in each.lines[:2] for each in (*exception.chain, exception))


def _has_last_word(line: LogLine, scene: Scene) -> bool:
    """A program printed an error and nothing after it: a shell, an argument parser, an interpreter."""
    if "NCCL" in line.text:
        return False  # it warns of what it then works around
    last = scene.last_lines.get((line.source, line.host, line.rank, line.stream))
    return last is not None and (last.number <= line.number or last.text == line.text)
