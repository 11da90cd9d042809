"""Progress bars are shown in few lines, and none of their ends is lost."""

from __future__ import annotations

from orchestrator.output.bars import BarFilter
from orchestrator.output.lines import Line, LineAssembler


def lines_of(pieces: list[tuple[float, bytes]], bars: BarFilter, rank: int = 0) -> list[str]:
    assembler = LineAssembler("gpu-1", rank, "stderr", 1)
    shown: list[Line] = []
    for at, piece in pieces:
        shown += bars.push(assembler.feed(piece, at), at)
    shown += bars.push(assembler.flush(), 1e9)
    shown += bars.flush(1e9)
    return [line.text for line in shown]


def bar(percent: int) -> bytes:
    return f"\r{percent}%| {percent}/100 [00:01<00:02, 3.00it/s]".encode()


def test_only_the_end_of_a_bar_is_shown() -> None:
    pieces = [(float(percent), bar(percent)) for percent in range(0, 101, 10)]
    assert [text.split("|")[0] for text in lines_of([*pieces, (101.0, b"\n")], BarFilter())] == ["100%"]
    assert [text.split("|")[0] for text in lines_of(pieces, BarFilter())] == ["100%"]


def test_with_an_interval_some_states_are_shown() -> None:
    pieces = [(float(percent), bar(percent)) for percent in range(0, 101, 10)]
    shown = lines_of([*pieces, (101.0, b"\n")], BarFilter(30.0))
    assert [text.split("|")[0] for text in shown] == ["30%", "60%", "90%", "100%"]


def test_a_line_between_two_bars_comes_after_the_state_that_it_follows() -> None:
    pieces = [(0.0, bar(10)), (1.0, bar(20)), (2.0, bar(30)), (3.0, b"\n"), (4.0, b"saved\n"), (5.0, bar(40))]
    assert [text.split("|")[0] for text in lines_of(pieces, BarFilter())] == ["30%", "saved", "40%"]


def test_lines_without_a_bar_pass_at_once() -> None:
    lines = [Line(0.0, "gpu-1", 0, "stdout", 1, "step:1")]
    assert BarFilter().push(lines, 0.0) is lines
