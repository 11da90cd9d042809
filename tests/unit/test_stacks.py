"""The stacks that hosts show of a run that printed nothing for too long."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.diagnosis import stacks
from orchestrator.diagnosis.dumps import HangCause
from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.record import RunRecord
from orchestrator.diagnosis.tracebacks import find_exceptions
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


BAR = "epoch 0:  38%|███▊      | 3/8 [00:01<00:02]"


def after_bar(lines: list[LogLine]) -> list[LogLine]:
    """The lines of a dump that was written while a progress bar had left its line open."""
    return [replace(lines[0], text=BAR + lines[0].text), *lines[1:]]


def test_a_progress_bar_before_the_stacks_hides_none_of_them() -> None:
    dumps = [dump(0, "S", BACKWARD, AT.format(9)), dump(1, "S", "", child="child "), dump(1, "S", AT.format(8))]
    left, found = stacks.split_off([line for one in dumps for line in after_bar(one)])
    assert [line.text for line in left] == [BAR] * 3
    assert [(stack.rank, stack.frames[-1][1]) for stack in found] == [(0, "9"), (1, "8")]
    py_spy = said(2, f'{BAR}Process 24311: python3 train.py\nThread 24311 (idle): "MainThread"\n    f (train.py:3)')
    left, (spied,) = stacks.split_off(py_spy, with_py_spy=True)
    assert ([line.text for line in left], spied.frames) == ([BAR], (("train.py", "3", "f"),))


def test_the_whole_diagnosis_of_a_hang_under_a_progress_bar_is_no_crash() -> None:
    dumps = dump(0, "S", BACKWARD, AT.format(9)), dump(1, "S", AT.format(8))
    lines = [line for one in dumps for line in after_bar(one)]
    (cause, *_) = diagnose(lines, RunRecord(stalled=True)).findings
    assert (cause.code, cause.rank, cause.hosts) == ("rank0-work-exceeds-timeout", 1, ("host-1",))


def test_only_the_first_attempt_counts_and_what_else_is_said_stays() -> None:
    first, second = dump(1, "S", AT.format(8)), dump(1, "S")
    second = [LogLine(**{**line.__dict__, "attempt": 2}) for line in second]
    between = said(1, "loss 0.1", 50)
    left, found = stacks.split_off([*first, *between, *second])
    assert left == between and [stack.line.attempt for stack in found] == [1]


BARRIER = '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5356 in barrier'
MEETS = (
    '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 1764 in init_process_group'
)


def threads(rank: int, *of_each: list[str], current: int | None = None, child: str = "") -> list[LogLine]:
    """As faulthandler prints them: the newest thread first."""
    texts = [f"ddp-orch: rank {rank}, {child}pid 9, state S: its stacks follow", "Fatal Python error: Aborted", ""]
    for place, frames in enumerate(of_each):
        texts += [f"{'Current thread' if place == current else 'Thread'} 0x0{place} (most recent call first):", *frames]
    return said(rank, "\n".join([*texts, ""]), 100 * rank)


def test_the_main_thread_is_the_last_one_whichever_got_the_signal() -> None:
    pins = ['  File "/usr/lib/python3.11/threading.py", line 320 in wait']
    for current in (None, 0, 1):
        one = threads(0, pins, [BACKWARD, AT.format(32)], current=current)
        other = threads(1, ["  <no Python frame>"], [BARRIER, AT.format(39)], current=current)
        found = judged(one, other)
        assert found.code == "uneven-inputs"
        assert places(found) == [("1", "39", "main"), ("0", "32", "main", "backward")]


def test_ranks_that_wait_for_each_other_at_the_start_are_no_time_out() -> None:
    found = judged(*(threads(rank, [MEETS, AT.format(9)]) for rank in range(2)))
    assert (found.code, found.rank, len(found.evidence)) == ("worker-never-arrived", None, 2)
    assert "all ranks" in found.meaning.lower() and "MASTER_ADDR" in found.fix


def test_the_tracker_of_multiprocessing_is_not_the_training() -> None:
    tracker = [
        '  File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 239 in main',
        '  File "<string>", line 1 in <module>',
    ]
    found = judged(*(
        threads(rank, frames, child="child ")
        for rank in range(2)
        for frames in (tracker, [MEETS, AT.format(4)])
    ), *(threads(rank, [JOIN, AT.format(30)]) for rank in range(2)))  # fmt: skip
    assert found.code == "worker-never-arrived" and places(found)[0] == ("0", "4", "main")


def test_a_rank_that_had_lost_its_peer_before_is_where_it_was_then() -> None:
    text = """Traceback (most recent call last):
  File "/home/ann/code/barrier.py", line 6, in main
    dist.barrier()
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5356, in barrier
    work.wait()
RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.77.0.2]:4371"""
    leaves = '  File "/venv/lib/python3.11/site-packages/torch/library.py", line 665 in _del_library'
    one, other = dump(0, "R", leaves), dump(1, "S", BACKWARD, AT.format(4))
    exceptions = find_exceptions(said(0, text))
    _, found = stacks.split_off([*one, *other])
    result = stacks.find_hang_cause(stacks.go_back(found, exceptions))
    assert result is not None and places(result[0])[0] == ("0", "6", "main")
    assert stacks.go_back(found, ()) == found
