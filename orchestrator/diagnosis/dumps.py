"""Flight-recorder dumps of all ranks -> which rank never joined a collective, or called another one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EVIDENCE_RANKS = 4
MAX_NAMED = 8  # ranks


@dataclass(frozen=True)
class Collective:
    """One that a rank waits in."""

    seq: int
    operation: str
    sizes: str
    types: str
    state: str
    frames: tuple[str, ...]

    @property
    def call(self) -> tuple[str, str, str]:
        """What must be equal on all ranks."""
        return self.operation, self.sizes, self.types


@dataclass(frozen=True)
class Group:
    """What a rank had enqueued in a process group."""

    name: str
    enqueued: int
    waits: Collective | None


@dataclass(frozen=True)
class Dump:
    """A summary of what torch recorded of one rank (node/serve/flight.py)."""

    rank: int | None
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class HangCause:
    """Why ranks wait, by evidence other than their output."""

    code: str
    rank: int | None
    why: str
    evidence: tuple[str, ...]
    meaning: str = ""
    """In place of that of the code; the same for `fix`."""
    fix: str = ""


Ranks = Mapping[int | None, Group]
Waits = Mapping[int | None, Collective]


def find_hang_cause(dumps: Sequence[Dump]) -> HangCause | None:
    """The cause in the first group in which a rank stands out."""
    for name in dict.fromkeys(group.name for dump in dumps for group in dump.groups):
        cause = _check_group(name, {dump.rank: group for dump in dumps for group in dump.groups if group.name == name})
        if cause is not None:
            return cause
    return None


def _check_group(name: str, ranks: Ranks) -> HangCause | None:
    waits = {rank: group.waits for rank, group in ranks.items() if group.waits is not None}
    if not waits or len(ranks) < 2:
        return None
    seq = min(wait.seq for wait in waits.values())
    first = {rank: wait for rank, wait in waits.items() if wait.seq == seq}
    return _find_mismatch(name, seq, first) or _find_absent(name, seq, first, ranks)


def _find_mismatch(name: str, seq: int, waits: Waits) -> HangCause | None:
    """Ranks that called different collectives under the same number."""
    calls = Counter(wait.call for wait in waits.values())
    if len(calls) < 2:
        return None
    rarest = min(calls, key=lambda call: calls[call])
    rank = next(rank for rank, wait in waits.items() if wait.call == rarest)
    against = " against ".join(f"{operation} {sizes}" for operation, sizes, _ in calls)
    return HangCause("collective-mismatch", rank, f"group {name}, collective {seq}: {against}", _evidence(waits))


def _find_absent(name: str, seq: int, waits: Waits, ranks: Ranks) -> HangCause | None:
    """Ranks that never enqueued the collective that the others wait in."""
    absent = [rank for rank, group in ranks.items() if group.enqueued < seq]
    if not absent:
        return None
    operation = next(iter(waits.values())).operation
    names = ", ".join(map(str, absent[:MAX_NAMED]))
    why = f"group {name}: rank {names} never joined collective {seq} ({operation}), in which the others wait"
    return HangCause("collective-timeout", absent[0], why, _evidence(waits))


def _evidence(waits: Waits) -> tuple[str, ...]:
    lines = []
    for rank, wait in list(waits.items())[:EVIDENCE_RANKS]:
        place = f" at {wait.frames[0]}" if wait.frames else ""
        lines.append(f"rank {rank}: {wait.operation} {wait.sizes} {wait.state}{place}")
    return tuple(lines)
