"""Time-outs of all ranks -> which rank was missing from the collective, and why. Pure.

Who prints a time-out has waited. The culprit is who does not, who is behind, or who calls something else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .exits import Exit
from .tracebacks import Raised
from .transcript import Said

Confidence = Literal["high", "medium", "low"]

WATCHDOG = re.compile(
    r"(?:\[Rank (?P<rank>\d+)\])?\s*Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), "
    r"OpType=(?P<op>\w+)(?:, (?:TensorShape=\[[^\]]*\]|NumelIn=(?P<numel>\d+), NumelOut=\d+))?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d+))?"
)
WORK = re.compile(r"last enqueued(?: NCCL)? work: (?P<enqueued>\d+), last completed(?: NCCL)? work: (?P<completed>\d+)")
GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\d+)")
GLOO = re.compile(r"Timed out waiting (?P<limit>\d+)ms for (?P<what>recv|send) operation")
TOLD = re.compile(r"Watchdog|last enqueued|Timed out")
MONITORED = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
DESYNC = re.compile(r"(?:lagging|dead|mismatched) ranks.{0,60}desync|Rank (?P<rank>\d+) is (?:lagging|behind|stuck)")
PEER_GONE = re.compile(r"Connection (?:closed|reset) by peer|got 0 bytes|remote (?:peer|process) (?:exit|clos)")
STUCK = re.compile(r"Unable to shutdown process (?P<pid>\d+)")
OPERATION = re.compile(
    r"in (?P<name>backward|barrier|monitored_barrier|all_reduce|all_gather\w*|gather\w*|reduce\w*|broadcast\w*|"
    r"scatter\w*|all_to_all\w*|destroy_process_group|send|recv|wait|_sync_\w+|_pre_forward|_verify_param\w*)$"
)
BARRIERS = {"barrier", "monitored_barrier", "destroy_process_group"}
# over for no rank while another waits in it; of a broadcast the sender knows nothing of the others
TOGETHER = {"ALLREDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "ALLTOALL_BASE"}
TRAINS = {"backward", "_sync_buffers", "_pre_forward"}
FINISHED = re.compile(
    r"(?i)\b(?:finished|done|complete[d]?|end of (?:epoch|training)|exhausted|no more (?:data|batches)|stopiteration|"
    r"training (?:is )?over|max_(?:epochs|steps)\S* reached|evaluat|validat|epoch \d+ (?:took|summary|end))"
)
WORKS = re.compile(
    r"(?i)tokeniz|preprocess|pre-process|indexing|building|caching|download|saving|saved|writing|evaluat|validat|"
    r"generating|loading|converting|extracting|shard|merging|preparing|computing|exporting|upload|\d+%\|"
)
CHATTER = re.compile(r"NCCL|Watchdog|ProcessGroup|Error|site-packages|frame #")
STEP = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|it)\b\W{0,4}(?P<number>\d+)")
SLOW = re.compile(r"(?i)\bslow|\bstraggl|throttl|\bdelay|lagging|behind|sleep|\b(?:step|iter)\S*[ _]time")


@dataclass(frozen=True)
class Wait:
    """One rank that waited in vain."""

    rank: int | None
    host: str | None
    line: Said
    operation: str | None = None
    seq: int | None = None
    numel: int | None = None
    group: str | None = None
    enqueued: int | None = None
    limit: float | None = None  # s


@dataclass(frozen=True)
class Hang:
    code: str
    confidence: Confidence
    rank: int | None
    host: str | None
    line: Said
    message: str


def waits(lines: Sequence[Said], raised: Sequence[Raised]) -> list[Wait]:
    """The first of each rank, in the order of the lines."""
    found: dict[object, Wait] = {}
    for line in lines:
        if not TOLD.search(line.text):
            continue
        for match in WATCHDOG.finditer(line.text):
            rank = line.rank if line.rank is not None else int(match["rank"]) if match["rank"] else None
            wait = Wait(rank, line.host, line, match["op"], int(match["seq"]), _int(match["numel"]), limit=_s(match))
            found.setdefault(rank if rank is not None else line.number, wait)
        work, group = WORK.search(line.text), GROUP.search(line.text)
        if work and line.rank in found and found[line.rank].enqueued is None:
            before = found[line.rank]
            told = {"enqueued": int(work["enqueued"]), "group": group["group"] if group else None}
            found[line.rank] = Wait(**{**before.__dict__, **told})
        if (gloo := GLOO.search(line.text)) and "Read error" not in line.text:
            one = next((each for each in raised if 0 <= line.number - each.line.number <= 4), None)
            rank = line.rank
            key = rank if rank is not None else (line.source, line.number)
            found.setdefault(key, Wait(rank, line.host, line, _operation(one), limit=_s(gloo)))
    return list(found.values())


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _s(match: re.Match[str]) -> float | None:
    return int(match["limit"]) / 1000 if match["limit"] else None


def _operation(raised: Raised | None) -> str | None:
    if raised is None:
        return None
    names = [match["name"] for frame in raised.frames if (match := OPERATION.search(frame))]
    return "backward" if "backward" in names else names[-1] if names else None


def judge(
    lines: Sequence[Said], raised: Sequence[Raised], exits: Sequence[Exit], ranks: Mapping[int, str | None]
) -> Hang | None:
    """`ranks`: all ranks that are known, and their hosts."""
    waiting = waits(lines, raised)
    monitored = [(line, match) for line in lines if (match := MONITORED.search(line.text))]
    if not waiting and not monitored:
        return None
    first = monitored[0][0] if monitored else waiting[0].line
    stopped = _stopped(lines, waiting, exits, ranks)
    if stopped is not None:
        return stopped
    if monitored:
        late = [int(rank) for rank in re.split(r", ?", monitored[0][1]["ranks"])]
        return _absent(late, lines, waiting, first, ranks, in_barrier=True)
    return (
        mismatch(waiting, lines)
        or _elsewhere(waiting, raised, lines)
        or _behind(waiting, lines, ranks, {one.line.rank for one in raised if PEER_GONE.search(one.text)})
        or _large(waiting, lines, ranks)
        or Hang(*_fallback(waiting), None, None, first, "all known ranks waited in it")
    )


def _fallback(waiting: Sequence[Wait]) -> tuple[str, Confidence]:
    return ("collective-timeout" if waiting[0].seq is not None else "gloo-recv-timeout"), "low"


def _stopped(
    lines: Sequence[Said], waiting: Sequence[Wait], exits: Sequence[Exit], ranks: Mapping[int, str | None]
) -> Hang | None:
    """torchrun had to kill a rank that printed no time-out: it did not even run to its end."""
    waited = {wait.rank for wait in waiting}
    for line in lines:
        match = STUCK.search(line.text)
        if not match:
            continue
        one = next((each for each in exits if each.pid == int(match["pid"]) and each.rank is not None), None)
        rank = one.rank if one else None
        if rank is not None and rank not in waited:
            host = (one.host if one else None) or ranks.get(rank)
            return Hang("process-stopped", "medium", rank, host, line, "it ignored SIGTERM and printed no time-out")
    return None


def mismatch(waiting: Sequence[Wait], lines: Sequence[Said]) -> Hang | None:
    """Ranks that wait in different operations."""
    known = [wait for wait in waiting if wait.operation is not None]
    groups = {wait.group for wait in known} - {None}
    if len(known) < 2 or len(groups) > 1:
        return None
    if len({wait.seq for wait in known}) > 1:
        return _out_of_step(known)
    kinds = Counter(
        (wait.operation, wait.numel if wait.operation in ("ALLREDUCE", "BROADCAST") else None) for wait in known
    )
    if len(kinds) < 2:
        return None
    rarest = min(kinds, key=lambda kind: kinds[kind])
    odd = [wait for wait in known if (wait.operation, wait.numel if rarest[1] is not None else None) == rarest]
    wait = odd[0] if len(odd) < len(known) else known[0]
    what = " against ".join(sorted({f"{one.operation}{f' of {one.numel}' if one.numel else ''}" for one in known}))
    ended = [one for one in known if _is_barrier(one)]
    others = [one for one in known if one not in ended]
    if ended and any(one.operation in TRAINS or (one.numel or 0) > 1 for one in others):
        return _barrier_against_training(ended, what, lines)
    if [one.rank for one in ended] == [0] and len(others) > 1:  # as `if rank == 0: barrier()` does
        return Hang("barrier-deadlock", "medium", 0, ended[0].host, ended[0].line, what)
    return Hang("collective-mismatch", "medium", wait.rank, wait.host, wait.line, what)


def _is_barrier(wait: Wait) -> bool:
    return wait.operation in BARRIERS or wait.operation == "BARRIER" or wait.numel == 1


def _out_of_step(known: Sequence[Wait]) -> Hang | None:
    """Ranks whose collectives have different numbers."""
    wait = min(known, key=lambda wait: wait.seq or 0)
    others = [one for one in known if one.operation != wait.operation]
    if wait.operation not in TOGETHER or not others:
        return None  # one of them may only be slower
    what = f"{wait.operation} number {wait.seq} against {others[0].operation} number {others[0].seq}"
    return Hang("collective-mismatch", "low", wait.rank, wait.host, wait.line, what)


def _barrier_against_training(ended: Sequence[Wait], what: str, lines: Sequence[Said]) -> Hang:
    """Ranks in a barrier while others train: they have no more batches, or they alone call it."""
    first = ended[0]
    alone = [one.rank for one in ended] == [0]
    if alone and _saved(lines, first.line.number):
        return Hang("barrier-deadlock", "medium", 0, first.host, first.line, f"{what}, after it had saved")
    said = own_lines(lines, [one.rank for one in ended], first.line.number)
    finished = any(FINISHED.search(line.text) for line in said)
    if alone and not finished:
        return Hang("barrier-deadlock", "medium", 0, first.host, first.line, f"{what}, and nothing told of an end")
    return Hang("uneven-inputs", "high" if finished else "medium", first.rank, first.host, first.line, what)


def _elsewhere(waiting: Sequence[Wait], raised: Sequence[Raised], lines: Sequence[Said]) -> Hang | None:
    """Ranks that had ended their epoch wait for those that lose them in the midst of a step."""
    waited = {wait.rank for wait in waiting}
    ended = [wait for wait in waiting if wait.operation in BARRIERS]
    training = [one for one in raised if one.line.rank not in waited and _operation(one) in TRAINS]
    if not training or len(ended) < len(waiting):
        return None
    if not any(FINISHED.search(line.text) for line in own_lines(lines, [wait.rank for wait in ended])):
        return None
    first = ended[0]
    why = f"{first.operation} against {_operation(training[0])} of rank {training[0].line.rank}"
    if [wait.rank for wait in ended] == [0] and _saved(lines, first.line.number):
        return Hang("barrier-deadlock", "medium", first.rank, first.host, first.line, f"{why}, after it had saved")
    return Hang("uneven-inputs", "medium", first.rank, first.host, first.line, why)


def own_lines(lines: Sequence[Said], ranks: Sequence[int | None], before: int | None = None) -> list[Said]:
    """What ranks said themselves: tagged, or with `rank N` in the text."""
    wanted = {rank for rank in ranks if rank is not None}
    return [
        line
        for line in lines
        if (before is None or line.number < before)
        and not CHATTER.search(line.text)
        and (line.rank in wanted or speaker(line) in wanted)
    ]


SPEAKER = re.compile(r"(?i)\b(?:rank|proc(?:ess(?: index)?)?)[\s:=#]*(\d{1,4})\b")


def speaker(line: Said) -> int | None:
    match = SPEAKER.search(line.text)
    return int(match[1]) if match else None


def _saved(lines: Sequence[Said], before: int) -> bool:
    """Whether something was saved, last of all that was said. By whom is seldom told: it is rank 0 as a rule."""
    own = [
        line for line in lines if line.number < before and not CHATTER.search(line.text) and line.text[:1] not in " ^"
    ]
    return any(re.search(r"(?i)\bsav(?:ed|ing)\b|\bcheckpoint", line.text) for line in own[-3:])


def _behind(
    waiting: Sequence[Wait], lines: Sequence[Said], ranks: Mapping[int, str | None], lost: Collection[int | None]
) -> Hang | None:
    """A rank that is missing among those that waited, or that had enqueued less than they. `lost`: who lost a peer."""
    waited = {wait.rank for wait in waiting if wait.rank is not None}
    missing = [rank for rank in sorted(ranks) if rank not in waited]
    absent = [rank for rank in missing if rank not in lost] or missing  # who comes late loses those that gave up
    if waited and absent and len(absent) <= max(1, len(ranks) // 2):
        barrier = all(wait.operation in BARRIERS or wait.numel == 1 or wait.operation == "BARRIER" for wait in waiting)
        return _absent(absent, lines, waiting, waiting[0].line, ranks, in_barrier=barrier)
    counts = {wait.rank: wait.enqueued if wait.enqueued is not None else wait.seq for wait in waiting}
    numbers = Counter(number for number in counts.values() if number is not None)
    if len(numbers) > 1 and len({wait.group for wait in waiting}) == 1:
        least, most = min(numbers), max(numbers)
        late = [wait for wait in waiting if counts[wait.rank] == least]
        if len(late) < len(waiting) / 2 or len(waiting) == 2:
            what = f"it had enqueued {least} collectives, others {most}"
            return Hang("straggler", "low", late[0].rank, late[0].host, late[0].line, what)
    return None


def _absent(
    absent: Sequence[int],
    lines: Sequence[Said],
    waiting: Sequence[Wait],
    first: Said,
    ranks: Mapping[int, str | None],
    *,
    in_barrier: bool,
) -> Hang:
    """Why a rank did not take part: by what it said last."""
    rank = absent[0]
    host = ranks.get(rank)
    own = [line for line in own_lines(lines, absent) if "Traceback" not in line.text and not line.text.startswith(" ")]
    limit = max((wait.limit or 0.0 for wait in waiting), default=0.0)
    begun = (first.at or 0.0) - limit
    late = [line for line in own if line.number < first.number and (line.at is None or line.at >= begun)]
    tail = own[-3:] if own else []
    others = f"rank {rank} is missing among those that waited"
    work = _at_work(own[-12:]) or _work(lines, first) if len(absent) == 1 else None
    if any(SLOW.search(line.text) for line in tail):
        return Hang("straggler", "medium", rank, host, tail[-1], others)
    if work is not None and (rank == 0 or not own or in_barrier):
        return Hang("rank0-work-exceeds-timeout", "medium", rank, host, work, f"{others}; it was at work")
    if any(FINISHED.search(line.text) for line in tail):
        code = "barrier-deadlock" if in_barrier else "uneven-inputs"
        return Hang(code, "medium", rank, host, tail[-1], f"{others}; it had ended its part")
    if late and any(STEP.search(line.text) for line in own if line.number > first.number):
        return Hang("straggler", "medium", rank, host, late[-1], f"{others}; it was still at earlier steps")
    if in_barrier:
        return Hang("barrier-deadlock", "low", rank, host, first, others)
    return Hang(*_fallback(waiting), rank, host, first, others)


def _at_work(said: Sequence[Said]) -> Said | None:
    """The last of at least two lines of work."""
    found = [line for line in said if WORKS.search(line.text)]
    return found[-1] if len(found) >= 2 else None


def _work(lines: Sequence[Said], first: Said) -> Said | None:
    """The same in a log without ranks: just before and after the first time-out, by no rank that waited."""
    said = [
        line
        for line in lines
        if line.source == first.source
        and not (CHATTER.search(line.text) or "Traceback" in line.text or line.text.startswith((" ", "File ")))
    ]
    before = [line for line in said if line.number < first.number][-12:]
    after = [line for line in said if first.number <= line.number <= first.number + 30]
    return _at_work([*before, *after])


def _large(waiting: Sequence[Wait], lines: Sequence[Said], ranks: Mapping[int, str | None]) -> Hang | None:
    """All ranks of several hosts wait in one large transfer, after small ones went well."""
    hosts = {wait.host or wait.line.source for wait in waiting}
    everyone = bool(ranks) and {wait.rank for wait in waiting} >= set(ranks)
    small = any(re.search(r"(?i)small\b.*\b(?:ok|done|passed|works?)", line.text) for line in lines)
    big = any((wait.numel or 0) > 100_000 for wait in waiting) and all((wait.seq or 99) <= 10 for wait in waiting)
    if everyone and len(hosts) > 1 and (big or small):
        why = "every rank of every host waited in a large transfer, and small ones had passed"
        return Hang("mtu-mismatch", "medium" if small else "low", None, None, waiting[0].line, why)
    return None
