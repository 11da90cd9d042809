"""What the head of a run answers when a host is asked to leave. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .operation import Operation


@dataclass(frozen=True)
class DrainAnswer:
    """The answer to `drain`."""

    accepted: bool
    """Whether the run can continue without that host."""
    elects: bool = False
    """Whether its hosts can elect another head."""


DRAIN = Operation("drain", DrainAnswer)
