"""The terminal's bell: for whoever follows a run and looks elsewhere."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.output.console import Console
from orchestrator.output.lines import Line
from orchestrator.runs.attach import Bell


@pytest.fixture
def terminal() -> Iterator[tuple[Console, int]]:
    """A console on a real terminal, and the side on which a person would hear it."""
    person, ours = os.openpty()
    with os.fdopen(ours, "w") as stream:
        yield Console(stream, colour=False), person
    os.close(person)


def heard(terminal: tuple[Console, int]) -> bytes:
    """What came so far; `.` marks the end, so that nothing is waited for in vain."""
    terminal[0].note(".")
    said = b""
    while not said.endswith(b".\r\n"):
        said += os.read(terminal[1], 1000)
    return said.removesuffix(b".\r\n")


def line(attempt: int) -> Line:
    return Line(at=1.0, host="gpu-1", rank=0, stream="stdout", attempt=attempt, text="step 1")


def test_it_rings_when_the_run_has_ended(terminal: tuple[Console, int]) -> None:
    Bell(True, terminal[0]).ring()
    assert heard(terminal) == b"\a"


def test_it_rings_when_the_run_is_started_again_and_not_for_old_attempts(terminal: tuple[Console, int]) -> None:
    bell = Bell(True, terminal[0])
    bell.push([], 0.0)
    bell.push([line(1), line(2)], 0.0)
    bell.push([line(2)], 0.0)
    assert heard(terminal) == b""
    assert bell.push([line(3)], 0.0) == [line(3)]
    bell.push([line(3), line(2)], 0.0)
    assert heard(terminal) == b"\a"


def test_it_is_silent_where_it_is_not_wanted(terminal: tuple[Console, int]) -> None:
    bell = Bell(False, terminal[0])
    bell.push([line(1)], 0.0)
    bell.push([line(2)], 0.0)
    bell.ring()
    assert heard(terminal) == b""


def test_there_is_no_bell_in_a_file() -> None:
    file = io.StringIO()
    Bell(True, Console(file, colour=False)).ring()
    assert file.getvalue() == ""


@pytest.mark.parametrize("program", ["osascript", "notify-send"])
def test_a_message_is_shown_on_the_desktop(
    program: str, terminal: tuple[Console, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "shown"
    monkeypatch.setenv("PATH", str(tmp_path))
    bell = Bell(False, terminal[0], "nightly")
    bell.ring()  # without a program, nothing happens
    (tmp_path / program).write_text(f'#!/bin/sh\nfor word; do echo "$word"; done >> {shown}\n')
    (tmp_path / program).chmod(0o755)

    def last() -> str:
        return shown.read_text().rpartition("run nightly ")[2] if shown.exists() else ""

    bell.push([line(1)], 0.0)
    bell.push([line(2)], 0.0)
    wait_until(lambda: last() == "restarts: attempt 2\n", 10, "the restart is shown")
    bell.ring()
    wait_until(lambda: last() == "has ended\n", 10, "the end is shown")
    assert heard(terminal) == b""
