"""What a host remembers of the runs on it that have ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import RunId


@dataclass(frozen=True)
class HostFailure:
    """A failure that ended an attempt of a run."""

    host: str
    """By its name in the inventory of that run; "all hosts" where none is to blame."""
    attempt: int
    code: str
    """As of a finding; `script-exception`: nothing points to the host."""
    what: str
    at: float


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended, as one of its hosts remembers it."""

    at: float
    """Unix seconds, by the clock of the host."""
    run_id: RunId
    name: str
    state: str
    attempts: int
    node: int
    """That the host was."""
    failures: tuple[HostFailure, ...]
