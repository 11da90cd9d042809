"""Ranks that wait in vain: who is to blame, by the operations that they wait in."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.hangs import Hang, Wait, diagnose_hang, find_mismatch
from orchestrator.diagnosis.transcript import LogLine


def line(number: int, text: str, rank: int | None = None) -> LogLine:
    return LogLine(number, "train.log", None, rank, None, text)


def wait(rank: int, operation: str | None, seq: int = 7, numel: int | None = None, group: str | None = None) -> Wait:
    return Wait(rank, None, line(100 + rank, "timed out", rank), operation, seq, numel, group)


def verdict(hang: Hang | None) -> tuple[str, int | None] | None:
    return None if hang is None else (hang.code, hang.rank)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([wait(0, "ALLREDUCE", numel=5), wait(1, "ALLREDUCE", numel=5)], None),
        ([wait(0, "ALLREDUCE", numel=5)], None),
        ([wait(0, "ALLREDUCE", group="0"), wait(1, "BROADCAST", group="1")], None),
        # the rarest kind is at fault
        ([wait(0, "ALLGATHER"), wait(1, "BROADCAST", numel=9), wait(2, "ALLGATHER")], ("collective-mismatch", 1)),
        ([wait(0, "ALLREDUCE", numel=8), wait(1, "ALLREDUCE", numel=8), wait(2, "ALLREDUCE", numel=9)],
         ("collective-mismatch", 2)),
        # collectives with different numbers: those that all ranks leave together show who is behind
        ([wait(0, "ALLREDUCE", seq=6), wait(1, "BROADCAST", seq=7)], ("collective-mismatch", 0)),
        ([wait(0, "BROADCAST", seq=6), wait(1, "ALLREDUCE", seq=7)], None),
        ([wait(0, "ALLREDUCE", seq=6), wait(1, "ALLREDUCE", seq=7)], None),
        # a barrier of rank 0 alone
        ([wait(0, "barrier"), wait(1, "ALLGATHER"), wait(2, "ALLGATHER")], ("barrier-deadlock", 0)),
        ([wait(0, "barrier"), wait(1, "backward")], ("barrier-deadlock", 0)),
        ([wait(0, "backward"), wait(1, "barrier")], ("uneven-inputs", 1)),
    ],
)  # fmt: skip
def test_ranks_in_different_operations(waits: list[Wait], expected: tuple[str, int] | None) -> None:
    assert verdict(find_mismatch(waits, [])) == expected


def test_rank_0_in_a_barrier_after_its_end_had_fewer_batches() -> None:
    lines = [line(1, "rank 0: training finished", 0)]
    hang = find_mismatch([wait(0, "barrier"), wait(1, "backward")], lines)
    assert verdict(hang) == ("uneven-inputs", 0)
    assert hang is not None and hang.confidence == "high"


def test_rank_0_in_a_barrier_after_saving_calls_it_alone() -> None:
    lines = [line(1, "training finished", 0), line(2, "saved checkpoint", 0)]
    assert verdict(find_mismatch([wait(0, "barrier"), wait(1, "backward")], lines)) == ("barrier-deadlock", 0)


WATCHDOG = (
    "[Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=1000)"
)


def test_the_rank_that_printed_no_timeout_is_missing() -> None:
    lines = [line(rank, WATCHDOG.format(rank=rank), rank) for rank in (0, 2)]
    hang = diagnose_hang(lines, (), (), dict.fromkeys(range(3)))
    assert verdict(hang) == ("collective-timeout", 1)
    assert hang is not None and hang.message == "rank 1 is missing among the ranks that waited"


def test_where_no_rank_timed_out_there_is_no_hang() -> None:
    assert diagnose_hang([line(0, "step 1", 0)], (), (), {0: None}) is None
