"""When a run saves a snapshot and stops, before its walltime or on request."""

from __future__ import annotations

import pytest

from orchestrator.node.gang.finish import LEAST_LEAD, OTHERS_WINDOW, REQUEST_WINDOW, Finish, Step


@pytest.mark.parametrize(
    ("walltime", "grace", "begins", "stops"),
    [
        (14_400.0, 30.0, 14_400 - 30 - 720, 14_370.0),  # 5 %
        (600.0, 30.0, 600 - 30 - LEAST_LEAD, 570.0),
        (40.0, 30.0, 0.0, 20.0),  # a half for each
        (40.0, 2.0, 18.0, 38.0),
    ],
)
def test_the_snapshot_begins_early_enough(walltime: float, grace: float, begins: float, stops: float) -> None:
    finish = Finish(walltime, grace)
    assert finish.step(1e9, 1, is_saved=False) is None  # it has not begun
    finish.begin(1000.0)
    assert begins == 0.0 or finish.step(1000.0 + begins - 0.1, 1, is_saved=False) is None
    assert finish.step(1000.0 + begins, 1, is_saved=False) is Step.SIGNAL
    assert finish.step(1000.0 + stops - 0.1, 1, is_saved=False) is None
    assert finish.step(1000.0 + stops, 1, is_saved=False) is Step.STOP
    assert finish.request is not None and finish.request.by == "run.walltime"


@pytest.mark.parametrize(
    ("last_snapshot", "begins"),
    [
        (5.0, 14_400 - 30 - 40),  # 30 s and twice the time
        (1200.0, 14_400 - 30 - 2430),  # 5 % would have been too little
        (7000.0, 14_400 - 30 - 7200),  # half of the walltime
    ],
)
def test_the_time_of_the_last_snapshot_decides_when_the_next_begins(last_snapshot: float, begins: float) -> None:
    finish = Finish(14_400.0, 30.0)
    finish.begin(0.0)
    finish.last_snapshot = last_snapshot
    assert finish.step(begins - 0.1, 1, is_saved=False) is None
    assert finish.step(begins, 1, is_saved=False) is Step.SIGNAL


def test_a_run_is_stopped_as_soon_as_it_has_saved() -> None:
    finish = Finish(None, 30.0)
    finish.begin(0.0)
    assert finish.step(1e9, 1, is_saved=True) is None
    finish.ask("ann", 10.0, can_save=True)
    assert finish.step(10.0, 1, is_saved=True) is Step.SIGNAL  # what it saved before does not count
    assert finish.step(11.0, 1, is_saved=False) is None
    assert finish.step(12.0, 1, is_saved=True) is Step.STOP


def test_a_script_that_cannot_save_is_not_waited_for() -> None:
    finish = Finish(None, 30.0)
    finish.ask("ann", 10.0, can_save=False)
    finish.ask("ann", 11.0, can_save=False)  # each host says so, again and again
    assert finish.step(10.0, 1, is_saved=False) is Step.SIGNAL
    assert finish.step(10.0 + OTHERS_WINDOW, 1, is_saved=False) is Step.STOP


def test_a_script_that_saves_on_one_host_is_waited_for_whichever_host_speaks_first() -> None:
    """A spare, or a host whose ranks have no handler, must not end the run before rank 0 has saved."""
    finish = Finish(None, 30.0)
    for at, can_save in ((10.0, False), (10.5, True), (11.0, False)):
        finish.ask("ann", at, can_save=can_save)
    assert finish.step(10.5, 1, is_saved=False) is Step.SIGNAL
    assert finish.step(10.5 + REQUEST_WINDOW - 1, 1, is_saved=False) is None
    assert finish.step(11.0, 1, is_saved=True) is Step.STOP


def test_a_request_waits_no_longer_than_its_window_and_the_walltime() -> None:
    finish = Finish(None, 30.0)
    finish.ask("ann", 10.0, can_save=True)
    finish.ask("bob", 20.0, can_save=True)
    assert finish.step(10.0, 1, is_saved=False) is Step.SIGNAL
    assert finish.step(10.0 + REQUEST_WINDOW - 1, 1, is_saved=False) is None
    assert finish.step(10.0 + REQUEST_WINDOW, 1, is_saved=False) is Step.STOP
    assert finish.request is not None and finish.request.by == "ann"
    limited = Finish(100.0, 10.0)
    limited.begin(0.0)
    limited.ask("ann", 20.0, can_save=True)
    assert limited.step(20.0, 1, is_saved=False) is Step.SIGNAL
    assert limited.step(90.0, 1, is_saved=False) is Step.STOP


def test_ranks_of_a_later_attempt_are_signaled_again_and_without_ranks_the_run_is_stopped() -> None:
    finish = Finish(None, 30.0)
    finish.ask("ann", 10.0, can_save=True)
    assert finish.step(10.0, 1, is_saved=False) is Step.SIGNAL
    assert finish.step(11.0, 2, is_saved=False) is Step.SIGNAL
    assert finish.step(12.0, None, is_saved=False) is Step.STOP
