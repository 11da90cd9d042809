"""How long the phases of a launch took, as `up --timing` prints it."""

from __future__ import annotations

from golden_files import assert_message

from orchestrator.output.lines import Line
from orchestrator.runs.timing import FirstLine, FirstLines, Timing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def line(rank: int | None, host: str = "a") -> Line:
    return Line(0.0, host, rank, "stdout", 1, "text")


def test_each_phase_shows_its_slowest_host() -> None:
    clock = Clock()
    timing = Timing(clock)
    for host, seconds in (("a", 1.0), ("b", 2.0)):
        clock.now = 100.0 + seconds
        timing.connected(host)
        with timing.measure("prepare", host):
            clock.now += 3.0 - seconds
    with timing.measure("start", "head"):
        clock.now += 0.5
    assert timing.slowest() == {"connect": ("b", 2.0), "prepare": ("a", 2.0), "start": ("head", 0.5)}
    assert_message("timing", timing.describe())


def test_another_try_starts_from_the_beginning() -> None:
    clock = Clock()
    timing = Timing(clock)
    timing.connected("a")
    clock.now += 10.0
    timing.begin()
    clock.now += 1.0
    timing.connected("b")
    assert timing.slowest() == {"connect": ("b", 1.0)}


def test_phases_are_summarized_in_the_given_order_if_they_happened() -> None:
    clock = Clock()
    timing = Timing(clock)
    with timing.measure("check", "a"):
        clock.now += 0.5
    timing.connected("a")
    timing.started()
    assert timing.summarize("connect", "check", "send") == "connect 0.5 s, check 0.5 s"
    assert timing.until_start == 0.5


def test_the_first_line_of_any_rank_is_reported_once() -> None:
    clock, reports = Clock(), list[str]()
    timing = Timing(clock)
    timing.started()
    first = FirstLine(timing, reports.append)
    clock.now += 3.0
    first.push([line(None)], 0.0)
    assert not reports
    first.push([line(1, "b")], 0.0)
    first.push([line(0)], 0.0)
    assert len(reports) == 1 and "3.0 s" in reports[0]


def test_the_first_step_is_reported_once() -> None:
    clock, reports = Clock(), list[str]()
    timing = Timing(clock)
    timing.started()
    first = FirstLine(timing, reports.append)
    first.push([line(0)], 0.0)
    clock.now += 4.0
    step = line(0)._replace(text="Step 1/100 Loss 2.3")
    first.push([step], 0.0)
    first.push([step], 0.0)
    assert [report.split(" after ")[1] for report in reports] == ["0.0 s", "4.0 s"]
    assert timing.slowest() == {"first step": ("", 4.0)}


def test_the_report_follows_the_first_line_of_the_last_rank() -> None:
    clock, reports = Clock(), list[str]()
    timing = Timing(clock)
    timing.started()
    first = FirstLines(timing, 2, reports.append)
    lines = [line(None), line(0), line(0)]
    assert first.push(lines, 0.0) == lines and not reports
    clock.now += 2.0
    first.push([line(1, "b"), line(0)], 0.0)
    first.push([line(1, "b")], 0.0)
    assert first.flush(0.0) == ()
    assert len(reports) == 1 and timing.slowest() == {"first line": ("rank 1 on b", 2.0)}


def test_a_run_that_ends_before_is_reported_too() -> None:
    reports = list[str]()
    timing = Timing(Clock())
    timing.started()
    first = FirstLines(timing, 2, reports.append)
    first.push([line(0)], 0.0)
    first.flush(0.0)
    assert len(reports) == 1 and timing.slowest() == {"first line": ("rank 0 on a", 0.0)}
