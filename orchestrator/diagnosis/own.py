"""What our own recorder writes into a run's log. It repeats what others said, so it is no evidence of a cause. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .transcript import Said

# jobs that could not start report that on their own stderr, under the same name
LINE = re.compile(r"ddp-orch: (?!cannot start |setup line )")
ATTEMPT = re.compile(r"ddp-orch: attempt (?P<attempt>\d+) on ")
LOST = re.compile(r"ddp-orch: first failure(?:, seen late)?: (?P<host>\S+): host lost\b")


def by_attempt(lines: Sequence[Said]) -> list[list[Said]]:
    """The lines of each attempt, the last one last: what an earlier one overcame did not end the run.

    A log in plain text has no attempt numbers; there the recorder's lines show where an attempt begins.
    """
    numbered = any(line.attempt > 1 for line in lines)
    attempts: dict[int, list[Said]] = {}
    begun: dict[str, int] = {}
    for line in lines:
        if match := ATTEMPT.match(line.text) if line.agent and not numbered else None:
            begun[line.source] = int(match["attempt"])
        attempts.setdefault(begun.get(line.source, line.attempt), []).append(line)
    return [attempts[attempt] for attempt in sorted(attempts)] or [[]]


def cut(lines: Sequence[Said]) -> tuple[list[Said], list[Said]]:
    """The lines of others, and our own."""
    ours = [line for line in lines if line.agent and LINE.match(line.text)]
    numbers = {line.number for line in ours}
    return [line for line in lines if line.number not in numbers], ours


def lost(ours: Sequence[Said]) -> tuple[str, Said] | None:
    """The host of which the recorder says that it was lost first, and the line."""
    for line in reversed(ours):
        if match := LOST.match(line.text):
            return match["host"], line
    return None
