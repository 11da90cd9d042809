"""Suspects: signs of a cause in the logs, each with the level that decides which one counts. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..output.finding import Confidence
from .tracebacks import LoggedException
from .transcript import LogLine

# levels of precedence (docs/diagnose.md)
DECISIVE = 90  # the kernel, the hardware, the scheduler or ssh report it: whatever the order
SPECIFIC = 50  # an error that names itself: the first one counts
ENDING = 30  # a process that ended, a hang: the first one counts
FALLBACK = 10  # what others print about a failure that is itself not in the logs


@dataclass(frozen=True)
class Suspect:
    """One sign of one cause, somewhere."""

    code: str
    level: int
    line: LogLine
    rank: int | None
    host: str | None
    confidence: Confidence = "high"
    why: str = ""
    exception: LoggedException | None = None
    hint: bool = False
    """A warning: it explains a failure and proves none."""
    explains: tuple[str, ...] = ()
    """For a hint: codes that it explains if one of them is the first cause."""
    also: tuple[str, ...] = ()
    """Other hosts that show the same."""
    meaning: str = ""
    """In place of that of the cause; the same for `fix`."""
    fix: str = ""
    is_dated: bool = True
    """Whether the time of the line is that of the failure. The last line of a lost host may be much older."""


Suspects = tuple[Suspect, ...]


def any_proof(suspects: Suspects, level: int) -> bool:
    """Whether a suspect of at least this level is more than a hint."""
    return any(suspect.level >= level and not suspect.hint for suspect in suspects)


def map_code(suspects: Suspects, code: str, change: Callable[[Suspect], Suspect]) -> Suspects:
    """With those of one code changed."""
    return tuple(change(suspect) if suspect.code == code else suspect for suspect in suspects)
