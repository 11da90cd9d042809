"""The runs that have ended on a host, as it remembers them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import RunId


@dataclass(frozen=True)
class HostFailure:
    """A failure that ended an attempt of a run."""

    host: str
    """Its name in the inventory of that run; "all hosts" if no host caused it."""
    attempt: int
    code: str
    """The code of the finding; `script-exception`: the host did not cause it."""
    what: str
    """In words."""
    at: float
    """Unix time, seconds."""
    outage: bool = False
    """Whether most hosts of the run were lost at about the same time."""


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended, as one of its hosts remembers it."""

    at: float
    """When it ended: Unix time, seconds, by the clock of the host."""
    run_id: RunId
    name: str
    state: str
    attempts: int
    """How many."""
    node: int
    """The node number of this host."""
    failures: tuple[HostFailure, ...]
