"""All ranks of a run cease to print while somebody follows it."""

from __future__ import annotations

import math

import pytest

from orchestrator.inventory.advice import AboutRun
from orchestrator.output.lines import Line
from orchestrator.runs.silence import Silence


class Watched:
    """A run of two ranks; `notes` has the time of each note."""

    def __init__(self) -> None:
        self.notes: list[float] = []
        self.texts: list[str] = []
        self.cut_off = False
        self.now = 0.0
        self.stage = Silence(2, AboutRun("exp", "inventory.yaml"), self.note, lambda: self.cut_off)

    def note(self, text: str) -> None:
        self.notes.append(self.now)
        self.texts.append(text)

    def until(self, end: float) -> None:
        while self.now < end:
            self.now += 1.0
            self.stage.push((), self.now)

    def says(self, *ranks: int | None, attempt: int = 1, text: str = "step 1") -> None:
        lines = [Line(self.now, "gpu", rank, "stdout", attempt, text) for rank in ranks]
        assert self.stage.push(lines, self.now) == lines


@pytest.fixture
def run() -> Watched:
    return Watched()


def test_a_silence_is_told_once_with_what_to_look_at(run: Watched) -> None:
    run.says(0, 1)
    assert run.stage.wake_at == 120.0
    run.until(1000.0)
    assert run.notes == [120.0] and run.stage.wake_at == math.inf
    assert "2 min" in run.texts[0] and "ddp-orch top exp" in run.texts[0] and "ddp-orch diagnose exp" in run.texts[0]


def test_ranks_that_print_now_and_then_are_told_of_less_often(run: Watched) -> None:
    for at in (0.0, 200.0, 400.0, 600.0):
        run.until(at)
        run.says(0, 1)
    run.until(2000.0)
    assert run.notes == [120.0, 1000.0]


def test_nothing_is_told_before_all_ranks_have_printed(run: Watched) -> None:
    run.says(0)
    run.until(500.0)
    run.says(1)
    run.says(1, attempt=2)  # the next attempt loads its data
    run.until(1000.0)
    assert run.notes == []


@pytest.mark.parametrize(
    "text", ["ddp-orch: waiting for gpu-1 to come back", "ddp-orch: first failure: x", "ddp-orch: attempt 2 on a"]
)
def test_nothing_is_told_while_the_run_waits_or_stops(run: Watched, text: str) -> None:
    run.says(0, 1)
    run.says(None, text=text)
    run.until(1000.0)
    assert run.notes == []


def test_a_server_may_be_silent(run: Watched) -> None:
    run.says(0, 1)
    run.says(0, text="ddp-orch: ready after 10 s: http://gpu:8000")
    run.until(1000.0)
    assert run.notes == []


def test_a_broken_connection_is_no_silence(run: Watched) -> None:
    run.says(0, 1)
    run.cut_off = True
    run.until(500.0)
    run.cut_off = False
    run.until(1000.0)
    assert run.notes == [620.0]
