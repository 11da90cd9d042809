"""A rank dies: killed, crashed, failed by itself, out of memory. All nodes stop, and that rank is named."""

from __future__ import annotations

import pytest
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, MOMENTS, chance, fault, kill, numbers, trial, worker

short = pytest.mark.short


@pytest.mark.parametrize(
    ("number", "moment"),
    [pytest.param("KILL", "worst", marks=short), ("KILL", "random"), ("SEGV", "worst"), ("SEGV", "random")],
)
def test_a_killed_rank_ends_the_run_everywhere(lab3: Lab, number: str, moment: str) -> None:
    dice = chance(number, moment)
    victim = dice.randrange(3)
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        host = lab3.hosts[victim]
        kill(host, worker(host, run.run_id), number)
        fact = run.assert_ended(1, "failed", f"{host.name}: rank {victim}")
    assert numbers(fact, host.name) == (None, f"SIG{number}")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_that_fails_ends_the_run_everywhere(lab3: Lab, moment: str) -> None:
    dice = chance(moment)
    victim = dice.randrange(3)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        if moment == "random":
            run.wait_for_moment(moment, victim, dice)
        fault(host, "fail")
        fact = run.assert_ended(1, "failed", f"{host.name}: rank {victim}", within=120)
    assert numbers(fact, host.name) == (1, None)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_that_eats_the_memory_is_killed_alone_and_named(lab2: Lab, moment: str) -> None:
    """Its guard and recorder share the control group with it, and have to survive it."""
    dice = chance(moment)
    host = lab2.hosts[1]
    host.limit_memory("1g")
    with trial(lab2, lab2.inventory(), GLOO, FOR_EVER, "0.05") as run:
        if moment == "random":
            run.wait_for_moment(moment, 1, dice)
        fault(host, "eat")
        fact = run.assert_ended(1, "failed", f"{host.name}: rank 1", within=120)
    assert numbers(fact, host.name) == (None, "SIGKILL")
