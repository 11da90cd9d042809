"""Time-outs of all ranks -> which rank was missing from the collective, and why. Pure.

A rank that prints a time-out has waited. The culprit is the one that prints none, is behind, or calls something else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..output.finding import Confidence
from .busy import CHATTER, FINISHED, STEP, find_work, has_left_its_loop, is_at_work
from .exits import FIELD, Exit
from .tracebacks import LoggedException
from .transcript import LogLine

WATCHDOG = re.compile(
    r"(?:\[Rank (?P<rank>\d+)\])?\s*Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), "
    r"OpType=(?P<op>\w+)(?:, (?:TensorShape=\[[^\]]*\]|NumelIn=(?P<numel>\d+), NumelOut=\d+))?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d+))?"
)
WORK = re.compile(r"last enqueued(?: NCCL)? work: (?P<enqueued>\d+), last completed(?: NCCL)? work: (?P<completed>\d+)")
GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\d+)")
GLOO = re.compile(r"Timed out waiting (?P<limit>\d+)ms for (?P<what>recv|send) operation")
TIMED_OUT = re.compile(r"Watchdog|last enqueued|Timed out")
MONITORED = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
PEER_GONE = re.compile(r"Connection (?:closed|reset) by peer|got 0 bytes|remote (?:peer|process) (?:exit|clos)")
STUCK = re.compile(r"Unable to shutdown process (?P<pid>\d+)")
OPERATION = re.compile(
    r"in (?P<name>backward|barrier|monitored_barrier|all_reduce|all_gather\w*|gather\w*|reduce\w*|broadcast\w*|"
    r"scatter\w*|all_to_all\w*|destroy_process_group|send|recv|wait|_sync_\w+|_pre_forward|_verify_param\w*)$"
)
BARRIERS = {"barrier", "monitored_barrier", "destroy_process_group"}
# these end on no rank while another waits in them; the sender of a broadcast does not wait for the others
TOGETHER = {"ALLREDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "ALLTOALL_BASE"}
SIZE_MATTERS = {"ALLREDUCE", "BROADCAST"}
TRAINS = {"backward", "_sync_buffers", "_pre_forward"}
SAVED = re.compile(r"(?i)\bsav(?:ed|ing)\b|\bcheckpoint")
SLOW = re.compile(r"(?i)\bslow|\bstraggl|throttl|\bdelay|lagging|behind|sleep|\b(?:step|iter)\S*[ _]time")
SMALL_PASSED = re.compile(r"(?i)small\b.*\b(?:ok|done|passed|works?)")
SPEAKER = re.compile(r"(?i)\b(?:rank|proc(?:ess(?: index)?)?)[\s:=#]*(\d{1,4})\b")
EXCEPTION_LINES = 4  # from an exception's line to the time-out in its message
LAST_LINES = 3  # of a rank that show how it ended
LARGE = 100_000  # elements
FIRST_COLLECTIVES = 10


@dataclass(frozen=True)
class Wait:
    """One rank that waited in vain."""

    rank: int | None
    host: str | None
    line: LogLine
    operation: str | None = None
    seq: int | None = None
    numel: int | None = None
    group: str | None = None
    enqueued: int | None = None
    limit: float | None = None  # s

    @property
    def in_barrier(self) -> bool:
        return self.operation in BARRIERS or self.operation == "BARRIER" or self.numel == 1

    @property
    def in_training(self) -> bool:
        return self.operation in TRAINS or (self.numel or 0) > 1


@dataclass(frozen=True)
class Hang:
    code: str
    confidence: Confidence
    rank: int | None
    host: str | None
    line: LogLine
    message: str


def diagnose_hang(
    lines: Sequence[LogLine],
    exceptions: Sequence[LoggedException],
    exits: Sequence[Exit],
    ranks: Mapping[int, str | None],
) -> Hang | None:
    """`ranks`: all known ranks, and their hosts. None: no rank timed out."""
    waits = find_waits(lines, exceptions)
    monitored = [(line, match) for line in lines if (match := MONITORED.search(line.text))]
    if not waits and not monitored:
        return None
    stopped = _find_stopped(lines, waits, exits, ranks)
    if stopped is not None:
        return stopped
    if monitored:
        line, match = monitored[0]
        late = [int(rank) for rank in re.split(r", ?", match["ranks"])]
        return _explain_absence(late, lines, waits, line, ranks, in_barrier=True)
    lost_a_peer = {exception.line.rank for exception in exceptions if PEER_GONE.search(exception.text)}
    return (
        find_mismatch(waits, lines)
        or _find_ended_epoch(waits, exceptions, lines)
        or _find_behind(waits, lines, ranks, lost_a_peer)
        or _find_large_transfer(waits, lines, ranks)
        or Hang(_timeout_code(waits), "low", None, None, waits[0].line, "all known ranks waited in it")
    )


# --- who waited


def find_waits(lines: Sequence[LogLine], exceptions: Sequence[LoggedException]) -> list[Wait]:
    """The first of each rank, in the order of the lines."""
    waits: dict[object, Wait] = {}
    for line in lines:
        if not TIMED_OUT.search(line.text):
            continue
        for match in WATCHDOG.finditer(line.text):
            wait = _wait_of_watchdog(line, match)
            waits.setdefault(wait.rank if wait.rank is not None else line.number, wait)
        known = waits.get(line.rank)
        if (work := WORK.search(line.text)) and known is not None and known.enqueued is None:
            group = GROUP.search(line.text)
            waits[line.rank] = replace(known, enqueued=int(work["enqueued"]), group=group["group"] if group else None)
        if (gloo := GLOO.search(line.text)) and "Read error" not in line.text:
            key = line.rank if line.rank is not None else (line.source, line.number)
            waits.setdefault(key, _wait_of_gloo(line, gloo, exceptions))
    return list(waits.values())


def _wait_of_watchdog(line: LogLine, match: re.Match[str]) -> Wait:
    rank = line.rank if line.rank is not None else int(match["rank"]) if match["rank"] else None
    numel = int(match["numel"]) if match["numel"] else None
    return Wait(rank, line.host, line, match["op"], int(match["seq"]), numel, limit=_limit(match))


def _wait_of_gloo(line: LogLine, match: re.Match[str], exceptions: Sequence[LoggedException]) -> Wait:
    own = (each for each in exceptions if 0 <= line.number - each.line.number <= EXCEPTION_LINES)
    exception = next(own, None)
    operation = _operation(exception) if exception is not None else None
    return Wait(line.rank, line.host, line, operation, limit=_limit(match))


def _limit(match: re.Match[str]) -> float | None:
    return int(match["limit"]) / 1000 if match["limit"] else None


def _operation(exception: LoggedException) -> str | None:
    """The collective that an exception was raised in."""
    names = [match["name"] for frame in exception.frames if (match := OPERATION.search(frame))]
    return "backward" if "backward" in names else names[-1] if names else None


def _timeout_code(waits: Sequence[Wait]) -> str:
    return "collective-timeout" if waits[0].seq is not None else "gloo-recv-timeout"


# --- which rank they waited for


def _find_stopped(
    lines: Sequence[LogLine], waits: Sequence[Wait], exits: Sequence[Exit], ranks: Mapping[int, str | None]
) -> Hang | None:
    """torchrun had to kill a rank that printed no time-out: it did not even run to its end."""
    waited = {wait.rank for wait in waits}
    for line in lines:
        match = STUCK.search(line.text)
        if not match:
            continue
        exit_ = next((each for each in exits if each.pid == int(match["pid"]) and each.rank is not None), None)
        if exit_ is not None and exit_.rank is not None and exit_.rank not in waited:
            host = exit_.host or ranks.get(exit_.rank)
            why = "it ignored SIGTERM and printed no time-out"
            return Hang("process-stopped", "medium", exit_.rank, host, line, why)
    return None


def find_mismatch(waits: Sequence[Wait], lines: Sequence[LogLine]) -> Hang | None:
    """Ranks that wait in different operations."""
    known = [wait for wait in waits if wait.operation is not None]
    if len(known) < 2 or len({wait.group for wait in known} - {None}) > 1:
        return None  # of ranks in different groups the operations may differ
    if len({wait.seq for wait in known}) > 1:
        return _find_out_of_step(known)
    odd = _find_odd_one(known)
    if odd is None:
        return None
    what = " against ".join(sorted({_describe(wait) for wait in known}))
    in_barrier = [wait for wait in known if wait.in_barrier]
    elsewhere = [wait for wait in known if not wait.in_barrier]
    if in_barrier and any(wait.in_training for wait in elsewhere):
        return _explain_barrier(in_barrier, what, lines)
    if _is_rank_0_alone(in_barrier) and len(elsewhere) > 1:  # as `if rank == 0: barrier()` does
        return Hang("barrier-deadlock", "medium", 0, in_barrier[0].host, in_barrier[0].line, what)
    return Hang("collective-mismatch", "medium", odd.rank, odd.host, odd.line, what)


def _find_odd_one(waits: Sequence[Wait]) -> Wait | None:
    """The first wait of the rarest kind; None where all are of one kind."""
    kinds = Counter((wait.operation, wait.numel if wait.operation in SIZE_MATTERS else None) for wait in waits)
    if len(kinds) < 2:
        return None
    operation, numel = min(kinds, key=lambda kind: kinds[kind])
    return next(wait for wait in waits if wait.operation == operation and (numel is None or wait.numel == numel))


def _describe(wait: Wait) -> str:
    return f"{wait.operation} of {wait.numel}" if wait.numel else f"{wait.operation}"


def _is_rank_0_alone(waits: Sequence[Wait]) -> bool:
    return [wait.rank for wait in waits] == [0]


def _find_out_of_step(waits: Sequence[Wait]) -> Hang | None:
    """Ranks whose collectives have different numbers."""
    first = min(waits, key=lambda wait: wait.seq or 0)
    others = [wait for wait in waits if wait.operation != first.operation]
    if first.operation not in TOGETHER or not others:
        return None  # one of them may only be slower
    what = f"{first.operation} number {first.seq} against {others[0].operation} number {others[0].seq}"
    return Hang("collective-mismatch", "low", first.rank, first.host, first.line, what)


def _explain_barrier(in_barrier: Sequence[Wait], what: str, lines: Sequence[LogLine]) -> Hang:
    """Ranks in a barrier while others train: they have no more batches, or they alone call it."""
    first = in_barrier[0]
    alone = _is_rank_0_alone(in_barrier)
    if alone and _has_saved(lines, first.line.number):
        return Hang("barrier-deadlock", "medium", 0, first.host, first.line, f"{what}, after it had saved")
    own = lines_of_ranks(lines, [wait.rank for wait in in_barrier], first.line.number)
    finished = any(FINISHED.search(line.text) for line in own)
    if alone and not finished:
        return Hang(
            "barrier-deadlock", "medium", 0, first.host, first.line, f"{what}, and nothing shows that it had finished"
        )
    return Hang("uneven-inputs", "high" if finished else "medium", first.rank, first.host, first.line, what)


def _find_ended_epoch(
    waits: Sequence[Wait], exceptions: Sequence[LoggedException], lines: Sequence[LogLine]
) -> Hang | None:
    """Ranks that ended their epoch wait in a barrier, and others lose them in the middle of a step."""
    waited = {wait.rank for wait in waits}
    training = [each for each in exceptions if each.line.rank not in waited and _operation(each) in TRAINS]
    if not training or any(wait.operation not in BARRIERS for wait in waits):
        return None
    if not any(FINISHED.search(line.text) for line in lines_of_ranks(lines, [wait.rank for wait in waits])):
        return None
    first = waits[0]
    why = f"{first.operation} against {_operation(training[0])} of rank {training[0].line.rank}"
    if _is_rank_0_alone(waits) and _has_saved(lines, first.line.number):
        return Hang("barrier-deadlock", "medium", first.rank, first.host, first.line, f"{why}, after it had saved")
    return Hang("uneven-inputs", "medium", first.rank, first.host, first.line, why)


def _find_behind(
    waits: Sequence[Wait],
    lines: Sequence[LogLine],
    ranks: Mapping[int, str | None],
    lost_a_peer: Collection[int | None],
) -> Hang | None:
    """A rank that is missing among those that waited, or that enqueued less than they did."""
    waited = {wait.rank for wait in waits if wait.rank is not None}
    missing = [rank for rank in sorted(ranks) if rank not in waited]
    # a rank that comes late loses the peers that gave up, so it is not the one that was missing
    absent = [rank for rank in missing if rank not in lost_a_peer]
    absent = absent or [rank for rank in missing if is_at_work(lines_of_ranks(lines, [rank]), waits[0].line)] or missing
    if waited and absent and len(absent) <= max(1, len(ranks) // 2):
        in_barrier = all(wait.in_barrier for wait in waits)
        return _explain_absence(absent, lines, waits, waits[0].line, ranks, in_barrier=in_barrier)
    counts = {wait.rank: wait.enqueued if wait.enqueued is not None else wait.seq for wait in waits}
    numbers = {number for number in counts.values() if number is not None}
    if len(numbers) < 2 or len({wait.group for wait in waits}) != 1:
        return None
    behind = [wait for wait in waits if counts[wait.rank] == min(numbers)]
    if len(behind) >= len(waits) / 2 and len(waits) != 2:
        return None
    what = f"it had enqueued {min(numbers)} collectives, others {max(numbers)}"
    return Hang("straggler", "low", behind[0].rank, behind[0].host, behind[0].line, what)


def _explain_absence(
    absent: Sequence[int],
    lines: Sequence[LogLine],
    waits: Sequence[Wait],
    first: LogLine,
    ranks: Mapping[int, str | None],
    *,
    in_barrier: bool,
) -> Hang:
    """Why a rank did not take part: by its last lines. `first`: the line that reports the first time-out."""
    rank = absent[0]
    missing = f"rank {rank} is missing among the ranks that waited"
    own = [
        line
        for line in lines_of_ranks(lines, absent)
        if "Traceback" not in line.text and not line.text.startswith(" ") and not FIELD.match(line.text)
    ]
    last = own[-LAST_LINES:]

    def hang(code: str, line: LogLine, why: str = "", confidence: Confidence = "medium") -> Hang:
        return Hang(code, confidence, rank, ranks.get(rank), line, missing + why)

    if any(SLOW.search(line.text) for line in last):
        return hang("straggler", last[-1])
    work = find_work(own, lines, first, is_rank_0=rank == 0, in_barrier=in_barrier) if len(absent) == 1 else None
    if work is not None:
        return hang("rank0-work-exceeds-timeout", work, "; it was busy")
    if any(FINISHED.search(line.text) for line in last):
        return hang("barrier-deadlock" if in_barrier else "uneven-inputs", last[-1], "; it had finished its part")
    begun = (first.at or 0.0) - max((wait.limit or 0.0 for wait in waits), default=0.0)
    meanwhile = [line for line in own if line.number < first.number and (line.at is None or line.at >= begun)]
    if meanwhile and rank == 0 and has_left_its_loop(own):
        return hang("rank0-work-exceeds-timeout", meanwhile[-1], "; it was in another loop than before")
    if meanwhile and any(STEP.search(line.text) for line in own if line.number > first.number):
        return hang("straggler", meanwhile[-1], "; it was still at earlier steps")
    return hang("barrier-deadlock" if in_barrier else _timeout_code(waits), first, confidence="low")


def _find_large_transfer(
    waits: Sequence[Wait], lines: Sequence[LogLine], ranks: Mapping[int, str | None]
) -> Hang | None:
    """All ranks of several hosts wait in one large transfer, after small ones succeeded."""
    hosts = {wait.host or wait.line.source for wait in waits}
    everyone = bool(ranks) and {wait.rank for wait in waits} >= set(ranks)
    small_passed = any(SMALL_PASSED.search(line.text) for line in lines)
    early = all((wait.seq or 99) <= FIRST_COLLECTIVES for wait in waits)
    large = early and any((wait.numel or 0) > LARGE for wait in waits)
    if everyone and len(hosts) > 1 and (large or small_passed):
        why = "every rank of every host waited in a large transfer, and small ones had passed"
        return Hang("mtu-mismatch", "medium" if small_passed else "low", None, None, waits[0].line, why)
    return None


# --- what ranks printed


def lines_of_ranks(lines: Sequence[LogLine], ranks: Sequence[int | None], before: int | None = None) -> list[LogLine]:
    """What ranks printed themselves: tagged, or with `rank N` in the text. `before`: the number of a line."""
    numbers = {rank for rank in ranks if rank is not None}
    return [
        line
        for line in lines
        if (before is None or line.number < before)
        and not CHATTER.search(line.text)
        and (line.rank in numbers or rank_in_text(line) in numbers)
    ]


def rank_in_text(line: LogLine) -> int | None:
    match = SPEAKER.search(line.text)
    return int(match[1]) if match else None


def _has_saved(lines: Sequence[LogLine], before: int) -> bool:
    """Whether the last lines say that something was saved. They rarely say by whom: as a rule it is rank 0."""
    own = [
        line for line in lines if line.number < before and not CHATTER.search(line.text) and line.text[:1] not in " ^"
    ]
    return any(SAVED.search(line.text) for line in own[-LAST_LINES:])
