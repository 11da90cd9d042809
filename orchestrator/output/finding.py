"""A finding of `check` or `diagnose`, and source code that belongs to it. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .lines import rfc3339

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Confidence = Literal["high", "medium", "low"]
MEASURED = 1.0  # confidence of a measured fact
MIN_TIME = 1e9  # s; smaller values come from log lines without a date


@dataclass(frozen=True)
class Finding:
    """A finding in the output of `check --json` and `diagnose --json`. Codes are stable."""

    severity: Severity
    code: str
    hosts: tuple[str, ...]
    message: str
    fix: str
    """What the user can type or change, one thing per line."""
    evidence: tuple[str, ...] = ()
    """What was measured or read. `try: COMMAND` shows it to the user."""
    rank: int | None = None
    at: float | None = None
    confidence: Confidence | None = None
    """None: measured."""

    def as_dict(self) -> dict[str, object]:
        return {
            "severity": self.severity,
            "code": self.code,
            "hosts": list(self.hosts),
            "rank": self.rank,
            "at": None if self.at is None or self.at < MIN_TIME else rfc3339(self.at),
            "confidence": MEASURED if self.confidence is None else self.confidence,
            "message": self.message,
            "evidence": list(self.evidence),
            "fix": self.fix,
        }


@dataclass(frozen=True)
class SourceCode:
    """The user's own copy of the line that failed."""

    place: str
    """Such as `train.py:12 in load`."""
    number: int
    """Of the line."""
    lines: tuple[tuple[int, str], ...]
    """(number, text) of this line and its neighbours."""


def find_nothing(_: str) -> SourceCode | None:
    return None
