"""A rank that is at work elsewhere for longer than the time-out, while the others wait for it."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.record import RunRecord
from orchestrator.diagnosis.transcript import LogLine

IN_BACKWARD = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 16, in train',
    "    loss.backward()",
    '  File "/v/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward',
    "    torch.autograd.backward(",
    "RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation",
)
LOST = (
    *IN_BACKWARD[:-1],
    "RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234",
)
WATCHDOG = (
    "[E1128 00:00:00.000000 ProcessGroupNCCL.cpp:1] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=500, NumelOut=500, Timeout(ms)=8000) ran for 8001 ms",
)
STEPS = tuple((float(step), f"step {step} loss 2.{step}") for step in range(4))
ENDS_AT = 12.0

Timed = tuple[tuple[float, str], ...]


def first_cause(busy: int, said: Timed, after: tuple[str, ...], waits: tuple[str, ...]) -> tuple[str, int | None]:
    """Of three ranks. `said`: by the rank that is busy; `after`: what it prints after the others have timed out."""
    lines = [(at, busy, "stdout", text) for at, text in (*STEPS, *said)]
    waiting = sorted({0, 1, 2} - {busy})
    lines += [(ENDS_AT, waiting[0], "stderr", text) for text in waits]
    lines += [(ENDS_AT + 0.1, waiting[1], "stderr", text) for text in (LOST if len(waits) > 1 else waits)]
    lines += [(ENDS_AT + 1, busy, "stderr" if len(after) > 1 else "stdout", text) for text in after]
    hosts = {0: "a", 1: "b", 2: "c"}
    logged = [
        LogLine(number, hosts[rank], hosts[rank], rank, at, text, stream=stream)
        for number, (at, rank, stream, text) in enumerate(sorted(lines, key=lambda line: line[0]))
    ]
    first = diagnose(logged, RunRecord(hosts=tuple("abc"), ranks=hosts)).findings[0]
    return first.code, first.rank


BATCHES = tuple((4.0 + batch, f"eval batch {batch}") for batch in range(8))


@pytest.mark.parametrize(
    ("said", "after"),
    [
        (BATCHES, ("eval batch 8",)),
        (((4.0, "evaluating..."),), ()),
        (((4.0, "evaluating..."),), LOST),
        (((4.0, "epoch 0 finished"), (4.1, "evaluating on 5000 images")), ("evaluation took 9 s",)),
        (((4.0, "saving checkpoint to /nfs/last.pt"),), ("saved /nfs/last.pt",)),
        (((4.0, "Downloading weights from https://example.org/w.pt"),), ()),
        (tuple((4.0 + n, f"held-out batch {n} loss 0.{n}") for n in range(8)), ("held-out batch 8 loss 0.1",)),
    ],
)
@pytest.mark.parametrize("waits", [IN_BACKWARD, WATCHDOG], ids=["gloo", "nccl"])
def test_rank_0_that_works_for_longer_than_the_time_out_is_no_straggler(
    said: Timed, after: tuple[str, ...], waits: tuple[str, ...]
) -> None:
    assert first_cause(0, said, after, waits) == ("rank0-work-exceeds-timeout", 0)


@pytest.mark.parametrize("waits", [IN_BACKWARD, WATCHDOG], ids=["gloo", "nccl"])
def test_a_rank_that_is_still_at_earlier_steps_is_slow(waits: tuple[str, ...]) -> None:
    said = tuple((4.0 + 2 * step, f"step {4 + step} loss 2.0") for step in range(4))
    assert first_cause(0, said, ("step 8 loss 1.9",), waits) == ("straggler", 0)


@pytest.mark.parametrize("waits", [IN_BACKWARD, WATCHDOG], ids=["gloo", "nccl"])
def test_another_rank_that_evaluates_while_the_others_train_had_fewer_batches(waits: tuple[str, ...]) -> None:
    assert first_cause(1, ((4.0, "evaluating..."),), (), waits) == ("uneven-inputs", 1)


def test_rank_0_that_has_ended_its_part_had_fewer_batches() -> None:
    assert first_cause(0, ((4.0, "epoch 0 finished"),), (), IN_BACKWARD) == ("uneven-inputs", 0)
