"""Find the lines that ddp-orch's recorder writes into a log. Pure.

They only repeat others, so they prove no cause, but for lost hosts, killed guards and full disks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .transcript import LogLine

# a job that cannot start reports that under the same name, on its own stderr
RECORDER_LINE = re.compile(r"ddp-orch: (?!cannot start |setup line )")
ATTEMPT = re.compile(r"ddp-orch: attempt (?P<attempt>\d+) on (?P<hosts>.*)")
LOST = re.compile(
    r"ddp-orch: first failure(?:, seen late)?: (?P<host>\S+): (?:(?:host|head) lost\b|the host was restarted)"
)
CUT_RANKS = re.compile(
    r"ddp-orch: first failure: \S+: host lost on the network of the ranks: .*\bat (?P<address>\S+) for "
)
CUT_FROM = re.compile(CUT_RANKS.pattern + r".*\(no other host can tell whether it or (?P<head>\S+) is cut off\)")
"""It may be the head as well."""
UNREACHED = re.compile(
    r"ddp-orch: (?P<host>\S+) (?:does not reach (?P<head>\S+)|is reached by no other host) at (?P<address>\S+), on "
    r"the network of "
)
REACHED = "ddp-orch: {host} reaches {head} at {address} again"
REACHED_BY_OTHERS = "ddp-orch: {host} is reached at {address} again"
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
RESTART = re.compile(r"ddp-orch: .*restart.* follows\b")
"""The attempt has ended."""
STOPS = re.compile(r"ddp-orch: .*; stopping all nodes$")
FENCES = re.compile(
    r"ddp-orch: (?:no (?:message from the head \((?P<head>[^)]+)\) for (?P<silence>\d+) s|majority of the hosts .*)"
    r"|the head \([^)]+\) reaches no majority of the hosts): (?:stopping|waiting)"
)
HEARS_AGAIN = re.compile(r"ddp-orch: (?:the head \(\S+\) is back|\S+ is the head|no longer suspect: .*)$")
FENCED_TOGETHER = 20.0  # s in which all hosts that are up notice it; one that says so later was off till then
FENCED_BEFORE = 3.0  # s: ranks are stopped when their permit lapses, and the recorder says why after a whole lease

DRAINS = re.compile(
    r"ddp-orch: (?:draining \S+: .*; stopping all nodes, to continue without it"
    r"|\S+ leaves the run, and leads no longer|the head \S+ has left the lead; )"
)
"""The attempt ends because a host was drained; what other hosts say if that was the head."""

SAYS_DROPPED = "ddp-orch: {size} bytes of output of {writer}, attempt {attempt}, were dropped: the disk was full"
DROPPED = re.compile(SAYS_DROPPED.format(size=r"\d+", writer=".*", attempt=r"(?P<attempt>\d+)") + "$")
FULL_DISK = re.compile(r"ddp-orch: (?P<host>\S+): .*\[disk-full\]")
"""What the head says of a host that has answered whether another attempt can run there."""


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


@dataclass(frozen=True)
class Silence:
    """Hosts without which there was no majority."""

    hosts: tuple[str, ...]
    line: LogLine
    """The line that shows it best."""
    is_sure: bool
    """Whether the hosts agree on who was silent."""
    is_parted: bool = False
    """Whether every host was silent to some other host that was up."""


def find_silence(recorder: Sequence[LogLine], lost: str | None) -> Silence | None:
    """The hosts that were silent to the others, or found all others silent while these were up.

    Only the first report of each host counts: later ones may be of hosts that are just coming back. `lost`: a host
    that the others have lost; what it did not hear is no loss.
    """
    reports: dict[str, tuple[set[str], LogLine]] = {}
    fences = _find_fences(recorder)
    for line in fences:
        if line.host and line.host != lost and (match := NO_MAJORITY.match(line.text)):
            reports.setdefault(line.host, (set(match["hosts"].split(", ")), line))
    if not reports:
        return None
    fenced = {line.host for line in fences if line.host}
    began = [match["hosts"].split(", ")[:-1] for line in recorder if (match := ATTEMPT.match(line.text))]
    hosts = fenced.union(reports, *(silent for silent, _ in reports.values()), *began)
    alone = {host: line for host, (silent, line) in reports.items() if fenced - {host} and silent == hosts - {host}}
    if len(hosts) == 2:
        alone = {}  # of two, nobody knows which one was cut off
    by_others = {host: report for host, report in reports.items() if host not in alone}
    if not by_others:
        return Silence(tuple(sorted(alone)), next(iter(alone.values())), len(alone) > 1, set(alone) == hosts)
    silent = set(alone).union(*(silent for silent, _ in by_others.values()))
    is_parted = silent == hosts
    is_sure = not (is_parted or (len(hosts) == 2 and fenced == hosts))
    return Silence(tuple(sorted(silent)), next(iter(by_others.values()))[1], is_sure, is_parted)


def attempt_of_dropped(text: str) -> int | None:
    """The attempt of which a host has dropped output; a host often says so only in the next attempt."""
    match = DROPPED.match(text)
    return int(match["attempt"]) if match else None


def find_full_disk(recorder: Sequence[LogLine], host: str) -> LogLine | None:
    """The line that says that a disk of a host was full."""
    for line in recorder:
        match = FULL_DISK.match(line.text)
        if (match and match["host"] == host) or (line.host == host and DROPPED.match(line.text)):
            return line
    return None


def find_left_out(recorder: Sequence[LogLine]) -> list[str]:
    """The hosts of the attempt that the next one is without."""
    return [host for line in recorder if (match := WITHOUT.match(line.text)) for host in match["hosts"].split(", ")]


def find_silent_head(recorder: Sequence[LogLine]) -> tuple[str, float, LogLine] | None:
    """The head of which another host heard nothing, for how many seconds, and the line that says so."""
    for line in _find_fences(recorder):
        if (match := FENCES.match(line.text)) and match["head"] and match["head"] != line.host:
            return match["head"], float(match["silence"]), line
    return None


def find_cut_ranks(recorder: Sequence[LogLine]) -> tuple[str, str, LogLine] | None:
    """A host whose ranks may hang, as their network does not reach the head, that address, and the line about it."""
    lines = [line.text for line in recorder]
    for line in recorder:
        if match := UNREACHED.match(line.text):
            ends = REACHED if match["head"] else REACHED_BY_OTHERS
            if ends.format(**match.groupdict()) not in lines:
                return match["host"], match["address"], line
    return None


def find_cut_off(recorder: Sequence[LogLine], host: str) -> LogLine | None:
    """The line by which a host says that it hears nothing of the others: it was up while they lost it."""
    return next((line for line in _find_fences(recorder) if line.host == host), None)


def _find_fences(recorder: Sequence[LogLine]) -> list[LogLine]:
    """The lines by which hosts say that they hear too little of the others, while the attempt ran."""
    fences: list[LogLine] = []
    for line in recorder:
        if RESTART.match(line.text):
            break
        if FENCES.match(line.text):
            fences.append(line)
    last = (fences[0].at or 0.0) + FENCED_TOGETHER if fences else 0.0
    return [line for line in fences if (line.at or 0.0) <= last]


def is_back(recorder: Sequence[LogLine], host: str) -> bool:
    """Whether the others hear a host again."""
    own = [line.text for line in recorder if line.host == host]
    back = (f"ddp-orch: {host} is back", f"ddp-orch: {host} is the head")
    return any(line.text in back for line in recorder) or any(map(HEARS_AGAIN.match, own))
