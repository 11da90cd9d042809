"""A rank that a signal has stopped: with stall_timeout it is named and the run ends, or goes on from the start."""

from __future__ import annotations

import re

import pytest
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, MOMENTS, chance, kill, trial, worker


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stopped_rank_is_named_and_ends_the_run(lab3: Lab, moment: str) -> None:
    dice = chance(moment)
    victim = dice.randrange(3)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(run={"stall_timeout": 30}), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        kill(host, worker(host, run.run_id), "STOP")
        run.assert_ended(1, "failed", f"{host.name}: rank {victim}: ", within=150)
        assert "(SIGSTOP)" in run.conclusion


def test_a_run_with_a_stopped_rank_is_started_again(lab3: Lab) -> None:
    dice = chance()
    victim = dice.randrange(3)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(run={"stall_timeout": 30, "max_restarts": 1}), GLOO, "60", "0.05") as run:
        run.wait_for_moment("random", victim, dice)
        kill(host, worker(host, run.run_id), "STOP")
        run.assert_ended(0, "succeeded", within=250, attempt=2)
    assert re.search(rf"\b{host.name}: rank {victim}: .*\bsignal\b", run.output)
