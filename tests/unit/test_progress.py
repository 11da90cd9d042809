"""What is shown while many hosts are worked on: nothing at first, then a table on a terminal or a line in a pipe."""

from __future__ import annotations

import io
import re
import threading

import pyte
import pytest
from golden_files import assert_message
from lab.waiting import wait_until
from rich.console import Console as Rich

from orchestrator.errors import UnreachableError
from orchestrator.hosts.fleet import each
from orchestrator.inventory.model import Host, parse
from orchestrator.output.console import Console
from orchestrator.ui import progress
from orchestrator.ui.progress import DONE, FAILED, WAITING, Progress, Row, line, table

HOSTS = parse("hosts: [a, b, c]", "inventory.yaml").hosts


def drawn(rows: list[Row], width: int = 80, height: int = 24) -> list[str]:
    """The table as it is seen on a terminal of this size."""
    out = io.StringIO()
    Rich(file=out, width=width, height=height, force_terminal=True).print(table(rows, 12.3, height))
    screen = pyte.Screen(width, height)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    assert out.getvalue().count("\n") < height, "it has scrolled"
    return [text.rstrip() for text in screen.display if text.strip()]


def rows_of(count: int) -> list[Row]:
    """Most are done; one hangs for long, two have failed alike, one with another reason."""
    rows = [Row(f"gpu-{number:03}", DONE, 0.0) for number in range(count - 9)]
    rows += [Row(f"gpu-{count - number:03}", "checking", number / 10) for number in range(4, 9)]
    rows += [Row(f"slow-{count}", "connecting", 11.9)]
    rows += [Row(f"old-{number}", FAILED, 0.0, "login: permission denied for user ann") for number in range(2)]
    return [*rows, Row("gone", FAILED, 0.0, "connect: " + "no answer in time " * 20)]


def test_few_hosts_have_a_row_each() -> None:
    rows = [
        Row("a", "sending the code", 3.21),
        Row("b", DONE, 0.0),
        Row("c", FAILED, 0.0, "login: no"),
        Row("d", WAITING, 9.0),
    ]
    assert_message("progress-of-few-hosts", "\n".join(drawn(rows)))


def test_how_far_a_hosts_work_has_come_stands_beside_it() -> None:
    shown = Progress(Console(io.StringIO(), False), io.StringIO(), live=True, clock=lambda: 0.0)
    with shown.track(["a", "b"]):
        shown.set_phase("a", "fetching")
        shown.set_amount("a", "3.1 MB of 20.0 MB")
        assert_message("progress-with-amounts", "\n".join(drawn(shown.rows(2.0))))
    with shown.track(["a"]):
        assert shown.rows(0.0)[0].amount == ""  # that was of other work


@pytest.mark.parametrize("count", [64, 250])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10)])
def test_of_many_hosts_the_slow_and_the_failed_ones_are_named(count: int, width: int, height: int) -> None:
    seen = drawn(rows_of(count), width, height)
    assert re.match(rf"{count - 9} .*\b{count} .*\b12 s$", seen[0])
    assert seen[2].split() == ["done", str(count - 9)]
    shown = "\n".join(seen)
    assert f"slow-{count}" in shown and "11.9" in shown
    assert "old-0, old-" in shown and "gone" in shown
    assert shown.index("connecting") < shown.index("checking")  # the slowest first
    if width >= 80:
        assert re.search(rf"gpu-{count - 8:03}, gpu-{count - 7:03}, gpu-{count - 6:03}, gpu-{count - 5:03} .*1 ", shown)
        assert "permission denied for user ann" in shown


def test_more_reasons_than_lines_are_counted() -> None:
    rows = [Row(f"gpu-{number}", FAILED, 0.0, f"reason {number}") for number in range(64)]
    seen = drawn(rows)
    assert len(seen) <= 23 and seen[-1].split(None, 1)[1] == "46 more such lines"


def test_what_a_host_says_is_no_markup_and_moves_no_cursor() -> None:
    seen = drawn([Row("[red]a", FAILED, 0.0, "it said \x1b[2J[bold]this\nand that")])
    assert "[red]a" in seen[-1] and seen[-1].endswith("[bold]this and that")


def test_a_line_names_those_that_are_waited_for() -> None:
    assert_message("progress-line", line(rows_of(64), 10.2))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(live: bool) -> tuple[Progress, Clock, io.StringIO]:
    clock, out = Clock(), io.StringIO()
    return Progress(Console(out, colour=False), out, live, clock), clock, out


@pytest.mark.parametrize("live", [False, True])
def test_what_is_over_soon_shows_nothing(live: bool) -> None:
    shown, clock, out = made(live)
    with shown.track(["a", "b"]):
        shown.tick()
        clock.now += 0.15
        shown.set_phase("a", "running")
        shown.tick()
        shown.finish("a", "login: permission denied for user ann")
        shown.tick()
        shown.finish("b")
    assert out.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_status_line_comes_before_the_table_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    clock, out, screen = Clock(), Terminal(), pyte.Screen(120, 24)
    shown = Progress(Console(out, colour=False), out, True, clock)
    with shown.track(["a", "b"]):
        shown.set_phase("a", "checking")
        shown.set_connection_phase("b", "connecting")
        shown.set_phase("b", "checking")
        clock.now += 0.3
        assert shown.tick() <= 0.1
        pyte.Stream(screen).feed(out.getvalue())
        assert all(fact in screen.display[0] for fact in ("checking: a", "connecting: b", "0 of 2", "0.3 s"))
    pyte.Stream(screen).feed(out.getvalue())
    assert not any(text.strip() for text in screen.display)


def test_in_a_pipe_a_line_comes_after_ten_seconds_and_then_ever_more_seldom() -> None:
    shown, clock, out = made(live=False)
    with shown.track(["a", "b"]):
        shown.finish("a")
        shown.set_phase("b", "running")
        shown.set_connection_phase("b", "connecting")
        told_at = []
        for _ in range(100):
            clock.now += shown.tick()
            if len(out.getvalue().splitlines()) > len(told_at):
                told_at.append(round(clock.now - 100))
            if clock.now > 112:
                shown.set_connection_phase("b", "")
    assert_message("progress-in-a-pipe", out.getvalue())
    assert len(told_at) == 3  # the last one after 70 s


def test_in_a_pipe_a_failure_is_told_when_the_others_go_on() -> None:
    shown, clock, out = made(live=False)
    with shown.track(["a", "b"]):
        shown.set_phase("b", "running")
        shown.finish("a", "login: permission denied for user ann")
        shown.tick()
        assert out.getvalue() == ""
        clock.now += 1.0
        shown.tick()
    assert_message("progress-of-a-failed-host", out.getvalue())


def test_a_late_word_of_a_connection_does_not_bring_a_host_back() -> None:
    shown, clock, _ = made(live=False)
    with shown.track(["a"]):
        shown.finish("a")
        shown.set_phase("a", "running")
        shown.set_connection_phase("a", "connecting")
        shown.set_connection_phase("a jump host", "connecting")
        shown.finish("b", "a host that an earlier command has asked")
        assert shown.rows(clock.now) == [Row("a", DONE, 0.0)]


def test_while_hosts_are_worked_on_the_table_is_there_and_then_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TABLE_AFTER", 0.01)
    monkeypatch.setattr(progress, "TABLE_EVERY", 0.01)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich's word for: it is a terminal
    out = io.StringIO()
    shown = Progress(Console(out, colour=False), out, live=True)
    screen, seen_b = pyte.Screen(80, 24), threading.Event()

    def look() -> list[str]:
        screen.reset()
        pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
        return [text.rstrip() for text in screen.display if text.strip()]

    def work(host: Host) -> None:
        if host.name == "c":
            raise UnreachableError("c: connect: refused")
        if host.name == "b":
            wait_until(lambda: any(text.startswith("b     running") for text in look()), 10, "b is shown")
            seen_b.set()
            assert look()[0].startswith("1 of 3 hosts done")
            assert any("failed" in text and "connect: refused" in text for text in look())

    results = each(HOSTS, work, 8, shown, "running")
    assert seen_b.is_set() and list(results.done) == ["a", "b"]
    assert look() == []
