"""How sure a first cause may be called, by the kind of evidence that it rests on. Pure. See docs/diagnose.md.

A signature tells what an error means, not whether this error ended the run. `high` is left for evidence that does not
mislead: what kernel, scheduler, ssh or our guards say of an end; an exception that nobody caught, that names itself and
that no other rank disputes; the last words of a program that then ended; a crash of which the launcher tells the
signal. Everything else is `medium` at most, however well its words match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .hangs import Confidence
from .scene import Scene
from .signs import DECISIVE, ENDING, FALLBACK, SPECIFIC, Suspect
from .tracebacks import INSTALLED, Raised
from .transcript import Said

# mistakes in the language itself, which mean the same whoever makes them; others carry a meaning that we may not know
PLAIN = re.compile(
    r"(?:^|\.)(?:NameError|UnboundLocalError|KeyError|IndexError|ZeroDivisionError|TypeError|AttributeError|"
    r"NotImplementedError|RecursionError|StopIteration|OverflowError)$"
)
# what they mean depends on what is on the other hosts, or on whose doing it is
ELSEWHERE = {
    "dataset-missing": r"No such file|Not a directory|not exist|not found",
    "script-import-error": r"No module named|cannot import name",
    "port-in-use": r".",
    "file-permission-denied": r".",
}
SAME_TIME = 2.0  # s within which clocks and torchrun's polling do not tell the order
CRASHES = re.compile(r"signal (?:11|7|4)$")
OF_AGENT = re.compile(r"death signal|got signal")


def sure(one: Suspect, others: Sequence[Suspect], seen: Scene) -> Confidence:
    """`others`: all suspects. Never more than the suspect's own confidence."""
    if one.level < ENDING or one.hint:
        return "low" if one.confidence == "high" else one.confidence
    if one.confidence != "high" or one.level >= DECISIVE:
        return one.confidence
    if one.level < SPECIFIC:
        crashed = CRASHES.search(one.why) is not None
        told = one.code == "sighup-session-closed" and OF_AGENT.search(one.line.text) is not None
        return "high" if (crashed or told) and not _disputed(one, others, seen) else "medium"
    if _disputed(one, others, seen) or _by_others(one, seen):
        return "medium"
    return "high" if (_of_exception(one, one.raised) if one.raised else _last_words(one, seen)) else "medium"


def _disputed(one: Suspect, others: Sequence[Suspect], seen: Scene) -> bool:
    """Whether another error, of another kind, may have come first."""
    least = SPECIFIC if one.level >= ENDING else FALLBACK
    own = {each.line.text for each in others if each.code == one.code}
    return any(
        other.code != one.code
        and not other.hint
        and other.level >= least
        and other.line.text not in own
        and (other.raised is None or other.raised is not one.raised)
        and not _later(other.line, one.line)
        for other in others
    )


def _later(other: Said, line: Said) -> bool:
    """Whether one line was surely said after another: by the clock, or in the same stream."""
    if other.at is not None and line.at is not None and other.at > line.at + SAME_TIME:
        return True
    streams = [(each.source, each.host, each.rank, each.stream) for each in (other, line)]
    return streams[0] == streams[1] and other.number > line.number


def _by_others(one: Suspect, seen: Scene) -> bool:
    """Whether the error would have another name if more of the other hosts were known."""
    pattern = ELSEWHERE.get(one.code)
    if pattern is None or not re.search(pattern, one.line.text):
        return False
    told = {raised.line.rank for raised in seen.raised if not raised.agent and _same(raised, one)}
    return len(seen.ranks) < 2 or not set(seen.ranks) <= told


def _same(raised: Raised, one: Suspect) -> bool:
    return one.raised is not None and raised.kind == one.raised.kind


def _of_exception(one: Suspect, raised: Raised) -> bool:
    """An exception that names itself: in its first words, not in what it happens to quote or to stand beside."""
    if raised.thread or raised.own_words or (raised.during and raised.chain):
        return False
    if one.code == "script-exception":
        last = next((frame for frame in reversed(raised.frames) if frame.startswith('File "')), "")
        root = raised.chain[0] if raised.chain else raised
        return bool(PLAIN.search(root.kind)) and last != "" and not INSTALLED.search(last)
    return any(one.line.text in each.lines[:2] for each in (*raised.chain, raised))


def _last_words(one: Suspect, seen: Scene) -> bool:
    """An error that a program printed and said nothing after: a shell, an argument parser, an interpreter."""
    if "NCCL" in one.line.text:
        return False  # it warns of what it then goes around
    last = seen.last_said.get((one.line.source, one.line.host, one.line.rank, one.line.stream))
    return last is not None and (last.number <= one.line.number or last.text == one.line.text)
