"""The part of a run's time that `--since T` and `--until T` choose. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UsageError
from .lines import parse_time

MICROSECOND = 1e-6  # printed times are cut off there


@dataclass(frozen=True)
class Span:
    """Unix times, seconds."""

    since: float = -math.inf
    until: float = math.inf

    @property
    def is_limited(self) -> bool:
        return self != ALL

    def holds(self, at: float) -> bool:
        return self.since <= at < self.until + MICROSECOND

    @property
    def first(self) -> float | None:
        """As in LogFilter.since; `last`: as in LogFilter.until."""
        return self.since if math.isfinite(self.since) else None

    @property
    def last(self) -> float | None:
        return self.until if math.isfinite(self.until) else None


ALL = Span()


def parse(since: str | None, until: str | None, now: float) -> Span:
    """The values of both options; None: not given. Raises UsageError."""
    first = -math.inf if since is None else _parse("--since", since, now)
    last = math.inf if until is None else _parse("--until", until, now)
    if first > last:
        raise UsageError(f"--since {since} is after --until {until}")
    return Span(first, last)


def _parse(option: str, text: str, now: float) -> float:
    try:
        return parse_time(text, now)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error
