"""torchrun's stack traces, as real runs have printed them, and what is shown of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.output.lines import Line
from orchestrator.output.torchrun_noise import Quieter

GOLDEN = Path(__file__).parents[1] / "golden" / "logs" / "quiet"


def agent(text: str, host: str = "node-0") -> Line:
    return Line(0.0, host, None, "agent", 1, text)


@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("*.raw")))
def test_of_a_stack_trace_the_last_line_is_shown(case: str) -> None:
    said = [line.partition(" ")[::2] for line in (GOLDEN / f"{case}.raw").read_text().splitlines()]
    quieter = Quieter()
    shown = [line for host, text in said for line in quieter.push([agent(text, host)], 0.0)]
    assert quieter.flush(0.0) == []
    text = "".join(f"{line.host} {line.text}\n" for line in shown)
    assert text == (GOLDEN / f"{case}.shown").read_text()


def test_what_a_rank_says_is_never_touched() -> None:
    rank = [
        Line(0.0, "node-0", 3, "stderr", 1, text)
        for text in ("Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: bad batch", "")
    ]
    assert Quieter().push(rank, 0.0) == rank
    assert Quieter().push([agent("hello"), *rank], 0.0) == [agent("hello"), *rank]


def test_our_own_lines_are_shown_at_once_also_within_a_trace() -> None:
    lines = [agent("Traceback (most recent call last):"), agent("  File"), agent("ddp-orch: the run has failed")]
    quieter = Quieter()
    assert quieter.push(lines, 0.0) == [agent("ddp-orch: the run has failed")]
    (last,) = quieter.push([agent("KeyError: 1")], 0.0)
    assert re.fullmatch(r"KeyError: 1  \(2 .*: ddp-orch logs --stream agent\)", last.text)


def test_a_trace_that_tail_has_cut_off_at_its_head_is_one_too() -> None:
    lines = [agent('  File "api.py", line 86, in f'), agent("    raise E"), agent("E: why"), agent("  indented, later")]
    source, *_ = Quieter().push([agent("    raise E"), agent("E: why")], 0.0)
    assert re.fullmatch(r"E: why  \(1 .*: ddp-orch logs --stream agent\)", source.text)
    summary = [agent("  rank      : 0 (local_rank: 0)"), agent("  exitcode  : 1 (pid: 9)"), agent("=====")]
    assert Quieter().push(summary, 0.0) == summary
    quieter = Quieter()
    last, later = quieter.push(lines, 0.0)
    assert re.fullmatch(r"E: why  \(2 .*: ddp-orch logs --stream agent\)", last.text)
    assert later.text == "  indented, later"


def test_the_mark_below_a_line_of_source_is_a_part_of_the_trace_too() -> None:
    (shown,) = Quieter().push([agent("           ^^^^^"), agent('  File "a.py", line 1, in f'), agent("E: why")], 0.0)
    assert shown.text.startswith("E: why  (2 ")


def test_how_torchrun_obeys_is_not_shown_where_tail_has_cut_off_who_stopped_it() -> None:
    exception = agent("torch.distributed.elastic.multiprocessing.api.SignalException: Process 65 got signal: 15")
    ended = agent("ddp-orch: the run was stopped")._replace(at=9.0)
    quieter = Quieter(is_tail=True)
    assert quieter.push([exception, ended], 0.0) == [ended]
    assert quieter.push([exception], 0.0) == [] and quieter.flush(0.0) == []
    died = agent("ddp-orch: first failure: node-0: torchrun ended; stopping all nodes")
    assert list(Quieter(is_tail=True).push([exception, died], 0.0)) == [exception, died]


def test_a_trace_without_an_end_is_shown_as_it_is() -> None:
    lines = [agent("Traceback (most recent call last):"), agent("  File")]
    quieter = Quieter()
    assert quieter.push(lines, 0.0) == []
    assert quieter.flush(0.0) == lines
    endless = [lines[0], *(agent(f"  line {number}") for number in range(2000))]
    assert [*quieter.push(endless, 0.0), *quieter.flush(0.0)] == endless


def test_how_torchrun_obeys_is_shown_unless_it_is_we_who_stop_it() -> None:
    elastic = "torch.distributed.elastic.multiprocessing.api"
    said = [
        agent(
            "W1122 17:07:52.318000 65 torch/agent/server/api.py:753] Received 15 death signal, shutting down workers"
        ),
        agent("Traceback (most recent call last):"),
        agent("  File"),
        agent(f"{elastic}.SignalException: Process 65 got signal: 15"),
    ]
    later = Line(2.0, "node-0", 3, "stdout", 1, "step 1")
    for word in (
        "stopping all nodes: requested by Ctrl-C",
        "first failure: b: rank 1: exit code 1; stopping all nodes",
    ):
        ours, other_attempt = agent(f"ddp-orch: {word}"), said[0]._replace(attempt=2)
        for lines in ([ours, *said, other_attempt, later], [*said, other_attempt, later, ours]):
            quieter = Quieter()
            assert {*quieter.push(lines, 0.0)} == {ours, later}
            assert quieter.flush(0.0) == [other_attempt]
    quieter = Quieter()
    assert quieter.push(said, 100.0) == quieter.push([], 102.0) == []
    assert list(quieter.push([later], 104.0))[2:] == [later]  # nobody says so in time: it was not we
    died = agent("ddp-orch: first failure: node-0: torchrun ended; stopping all nodes")
    assert list(Quieter().push([*said, died], 0.0))[::2] == [said[0], died]  # it was the first to be stopped
    quieter = Quieter()
    assert quieter.push([*said, later], 0.0) == [later]
    much_later = later._replace(at=4.0)
    first, exception, last = quieter.push([much_later], 0.0)
    assert first == said[0] and "got signal: 15  (2 " in exception.text and last == much_later
    assert quieter.flush(0.0) == []
