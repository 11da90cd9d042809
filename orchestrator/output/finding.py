"""A finding: a judged fact, as `check` and `diagnose` show it. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .lines import rfc3339

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Confidence = Literal["high", "medium", "low"]
MEASURED = 1.0  # the confidence of what was measured and not concluded
FIRST_TIME = 1e9  # s; an earlier time had no year


@dataclass(frozen=True)
class Finding:
    """The contract of `check --json` and `diagnose --json`. `code` is stable; several hosts may share one."""

    severity: Severity
    code: str
    hosts: tuple[str, ...]
    message: str
    fix: str
    """What to type or to change, one thing a line; ddp-orch never does it."""
    evidence: tuple[str, ...] = ()
    """What was asked, and what the answer was; `try: COMMAND` where the answer is for a person to see."""
    rank: int | None = None
    at: float | None = None
    confidence: Confidence | None = None
    """None: it was measured."""

    def as_dict(self) -> dict[str, object]:
        return {
            "severity": self.severity,
            "code": self.code,
            "hosts": list(self.hosts),
            "rank": self.rank,
            "at": None if self.at is None or self.at < FIRST_TIME else rfc3339(self.at),
            "confidence": MEASURED if self.confidence is None else self.confidence,
            "message": self.message,
            "evidence": list(self.evidence),
            "fix": self.fix,
        }
