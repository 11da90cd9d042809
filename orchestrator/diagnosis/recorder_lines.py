"""Find the lines that ddp-orch's recorder writes into a log. They only repeat others, so they prove no cause. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .transcript import LogLine

# a job that cannot start reports that under the same name, on its own stderr
RECORDER_LINE = re.compile(r"ddp-orch: (?!cannot start |setup line )")
ATTEMPT = re.compile(r"ddp-orch: attempt (?P<attempt>\d+) on ")
LOST = re.compile(
    r"ddp-orch: first failure(?:, seen late)?: (?P<host>\S+): (?:(?:host|head) lost\b|the host was restarted)"
)
RESTARTED = re.compile(r"ddp-orch: first failure(?:, seen late)?: \S+: the host was restarted")
KILLED_GUARD = re.compile(
    r"ddp-orch: first failure(?:, seen late)?: (?P<host>\S+): (?:the|its) guard (?:and recorder )?w"
)
NO_MAJORITY = re.compile(
    r"ddp-orch: no majority of the hosts answers \(silent: (?P<hosts>[^)]+)\): (?:stopping|waiting)"
)
WITHOUT = re.compile(
    r"ddp-orch: .*restart.* follows, (?:on \d+ hosts?, without|with .+ in place of) (?P<hosts>\S+(?:, \S+)*)$"
)
STOPS = re.compile(r"ddp-orch: .*; stopping all nodes$")
FENCES = re.compile(
    r"ddp-orch: no (?:message from the head \((?P<head>[^)]+)\) for (?P<silence>\d+) s|majority of the hosts .*): "
    r"(?:stopping|waiting)"
)
HEARS_AGAIN = re.compile(r"ddp-orch: (?:the head \(\S+\) is back|\S+ is the head)$")
FENCED_BEFORE = 3.0  # s: ranks are stopped when their permit lapses, and the recorder says why after a whole lease

DRAINS = re.compile(
    r"ddp-orch: (?:draining \S+: .*; stopping all nodes, to continue without it"
    r"|\S+ leaves the run, and leads no longer|the head \S+ has left the lead; )"
)
"""The attempt ends because a host was drained; what other hosts say if that was the head."""


def split_attempts(lines: Sequence[LogLine]) -> list[list[LogLine]]:
    """The lines of each attempt, in order: failures of earlier attempts did not end the run.

    Plain text has no attempt numbers; there, the recorder's lines show where an attempt begins.
    """
    numbered = any(line.attempt > 1 for line in lines)
    attempts: dict[int, list[LogLine]] = {}
    current: dict[str, int] = {}  # of each source
    for line in lines:
        if match := ATTEMPT.match(line.text) if line.agent and not numbered else None:
            current[line.source] = int(match["attempt"])
        attempts.setdefault(current.get(line.source, line.attempt), []).append(line)
    return [attempts[attempt] for attempt in sorted(attempts)] or [[]]


def split_off(lines: Sequence[LogLine]) -> tuple[list[LogLine], list[LogLine]]:
    """(lines of others, lines of the recorder)"""
    recorder = [line for line in lines if line.agent and RECORDER_LINE.match(line.text)]
    numbers = {line.number for line in recorder}
    return [line for line in lines if line.number not in numbers], recorder


def find_own_stop(recorder: Sequence[LogLine]) -> float | None:
    """When ddp-orch began to stop the ranks: what they say of a SIGTERM after that is no cause."""
    stops = [line.at for line in recorder if line.at is not None and STOPS.match(line.text)]
    stops += [line.at - FENCED_BEFORE for line in recorder if line.at is not None and FENCES.match(line.text)]
    return min(stops, default=None)


def find_lost_host(recorder: Sequence[LogLine]) -> tuple[str, LogLine] | None:
    """The host that the recorder reports as lost first, and its line."""
    for line in reversed(recorder):
        if match := LOST.match(line.text):
            return match["host"], line
    return None


def find_killed_guard(recorder: Sequence[LogLine]) -> tuple[str, LogLine] | None:
    """The host whose guard was killed first, and the line that says so."""
    for line in recorder:
        if match := KILLED_GUARD.match(line.text):
            return match["host"], line
    return None


def find_silent_hosts(recorder: Sequence[LogLine], lost: str | None) -> tuple[list[str], LogLine] | None:
    """The hosts without which there was no majority, and the line that says so.

    `lost`: a host that the others have lost; what it did not hear is no loss.
    """
    for line in recorder:
        if (match := NO_MAJORITY.match(line.text)) and (lost is None or line.host != lost):
            return sorted(match["hosts"].split(", ")), line
    return None


def find_left_out(recorder: Sequence[LogLine]) -> list[str]:
    """The hosts of the attempt that the next one is without."""
    return [host for line in recorder if (match := WITHOUT.match(line.text)) for host in match["hosts"].split(", ")]


def find_silent_head(recorder: Sequence[LogLine]) -> tuple[str, float, LogLine] | None:
    """The head of which another host heard nothing, for how many seconds, and the line that says so."""
    for line in recorder:
        if (match := FENCES.match(line.text)) and match["head"] and match["head"] != line.host:
            return match["head"], float(match["silence"]), line
    return None


def find_cut_off(recorder: Sequence[LogLine], host: str) -> LogLine | None:
    """The line by which a host says that it hears nothing of the others: it was up while they lost it."""
    return next((line for line in recorder if line.host == host and FENCES.match(line.text)), None)


def is_back(recorder: Sequence[LogLine], host: str) -> bool:
    """Whether the others hear a host again."""
    own = [line.text for line in recorder if line.host == host]
    return f"ddp-orch: {host} is back" in [line.text for line in recorder] or any(map(HEARS_AGAIN.match, own))
