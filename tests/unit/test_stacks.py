"""The stacks that hosts show of a run that printed nothing for too long."""

from __future__ import annotations

import re

from orchestrator.diagnosis import stacks
from orchestrator.diagnosis.dumps import HangCause
from orchestrator.diagnosis.transcript import LogLine


def said(rank: int, text: str, number: int = 0) -> list[LogLine]:
    return [
        LogLine(number + place, f"host-{rank}", f"host-{rank}", rank, 1.0, line, None, False, 1, "stderr")
        for place, line in enumerate(text.splitlines())
    ]


def dump(rank: int, state: str, *frames: str, child: str = "") -> list[LogLine]:
    header = f"ddp-orch: rank {rank}, {child}pid 9, state {state}, waits in futex: its stacks follow"
    rest = ["Fatal Python error: Aborted", "", "Current thread 0x00007f (most recent call first):", *frames, ""]
    return said(rank, "\n".join([header, *rest, "Extension modules: numpy (total: 1)"]), 100 * rank)


BACKWARD = '  File "/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395 in backward'
AT = '  File "/home/ann/code/train.py", line {} in main'


def judged(*dumps: list[LogLine]) -> HangCause:
    left, found = stacks.split_off([line for one in dumps for line in one])
    assert left == []
    result = stacks.find_hang_cause(found)
    assert result is not None
    return result[0]


def places(found: HangCause) -> list[tuple[str, ...]]:
    """The rank, line and functions that each piece of evidence names."""
    return [tuple(re.findall(r"\b(?:\d+|main|step|backward)\b", one)) for one in found.evidence]


def test_who_is_elsewhere_keeps_the_others_waiting() -> None:
    found = judged(dump(0, "S", BACKWARD, AT.format(9)), dump(1, "S", AT.format(8)))
    assert (found.code, found.rank) == ("rank0-work-exceeds-timeout", 1)
    assert places(found) == [("1", "8", "main"), ("0", "9", "main", "backward")]


def test_a_rank_that_the_disk_or_a_signal_holds_is_named_for_that() -> None:
    for state in "TtD":
        found = judged(dump(0, "S", BACKWARD, AT.format(9)), dump(1, state, AT.format(8)))
        assert (found.code, found.rank) == ("process-stopped", 1)


def test_a_rank_that_is_stopped_in_a_collective_keeps_the_others_waiting_too() -> None:
    found = judged(dump(0, "S", BACKWARD, AT.format(9)), dump(1, "T", BACKWARD, AT.format(9)))
    assert (found.code, found.rank) == ("process-stopped", 1)


def test_a_rank_that_shows_no_stack_is_not_called_absent() -> None:
    no_stack = said(
        1, "ddp-orch: rank 1, pid 9, state S: no stacks: no py-spy here, and it does not catch SIGABRT", 100
    )
    found = judged(dump(0, "S", BACKWARD, AT.format(9)), no_stack)
    assert (found.code, found.rank) == ("collective-timeout", None)


def test_where_all_wait_in_the_same_nobody_is_named() -> None:
    found = judged(*(dump(rank, "S", BACKWARD, AT.format(9)) for rank in range(3)))
    assert (found.code, found.rank) == ("collective-timeout", None)


def test_where_nobody_waits_it_is_said_where_they_are() -> None:
    found = judged(dump(0, "S", AT.format(8)), dump(1, "R", AT.format(8)))
    assert (found.code, found.rank) == ("unknown", None) and ("0", "8", "main") in places(found)


def test_where_most_wait_at_one_line_for_a_result_the_one_elsewhere_keeps_them_waiting() -> None:
    item = '  File "/home/ann/code/train.py", line 30 in step'
    found = judged(dump(0, "S", item), dump(1, "S", AT.format(8), item), dump(2, "S", item))
    assert (found.code, found.rank) == ("rank0-work-exceeds-timeout", 1)
    assert places(found)[:2] == [("1", "8", "main"), ("0", "30", "step")]


JOIN = '  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 150 in join'
LOADS = '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 281 in _worker_loop'


def test_a_rank_that_only_waits_for_its_children_is_where_they_are() -> None:
    training = [dump(rank, "S", BACKWARD, AT.format(9), child="child ") for rank in range(2)]
    waiting = [dump(rank, "S", JOIN, AT.format(30)) for rank in range(2)]
    found = judged(*training, *waiting)
    assert (found.code, places(found)[0]) == ("collective-timeout", ("0", "9", "main", "backward"))
    wrapper = "ddp-orch: rank 0, pid 9, state S: no stacks: no py-spy here, and it does not catch SIGABRT"
    assert judged(training[0], said(0, wrapper), training[1], waiting[1]) == found


def test_what_loads_data_for_a_rank_is_not_taken_for_it() -> None:
    loaders = [dump(rank, "S", LOADS, child="child ") for rank in range(2)]
    found = judged(*loaders, dump(0, "S", BACKWARD, AT.format(9)), dump(1, "S", AT.format(8)))
    assert (found.code, found.rank) == ("rank0-work-exceeds-timeout", 1)


def test_py_spy_is_read_too_and_only_its_main_thread() -> None:
    text = """Process 24311: /opt/venv/bin/python3 train.py
Python v3.11.7 (/opt/python3.11)

Thread 24353 (idle): "Thread-1 (_pin)"
    wait (threading.py:320)
Thread 24311 (idle): "MainThread"
    f (train.py:3)
    <module> (train.py:4)"""
    lines = [*said(2, text), *said(2, "another line", 50)]
    assert stacks.split_off(lines) == (lines, [])  # lines like these may be anybody's, where no run of ours has stalled
    left, (found,) = stacks.split_off(lines, with_py_spy=True)
    assert [line.text for line in left] == ["another line"]
    assert found.frames == (("train.py", "3", "f"), ("train.py", "4", "<module>"))


def test_only_the_first_attempt_counts_and_what_else_is_said_stays() -> None:
    first, second = dump(1, "S", AT.format(8)), dump(1, "S")
    second = [LogLine(**{**line.__dict__, "attempt": 2}) for line in second]
    between = said(1, "loss 0.1", 50)
    left, found = stacks.split_off([*first, *between, *second])
    assert left == between and [stack.line.attempt for stack in found] == [1]
