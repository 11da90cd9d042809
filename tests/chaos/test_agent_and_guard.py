"""torchrun or our own guard is killed: nothing of the tree survives it, and the run fails with that host's name."""

from __future__ import annotations

import pytest
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, MOMENTS, agent, chance, kill, ours, trial


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_torchrun_takes_its_ranks_and_ends_the_run(lab3: Lab, moment: str) -> None:
    dice = chance(moment)
    victim = dice.randrange(3)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        kill(host, agent(host, run.run_id))
        run.assert_ended(1, "failed", f"{host.name}: ")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_killed_guard_ends_the_run_and_leaves_nothing(lab3: Lab, victim: int, moment: str) -> None:
    dice = chance(moment, victim)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        guard = ours(host, "ddp-guard")
        assert guard is not None
        kill(host, guard)
        run.assert_ended(1, "failed", f"{host.name}: the guard")


@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_guard_and_a_recorder_killed_at_once_are_missed_by_the_others(lab3: Lab, victim: int) -> None:
    """Nobody of that host can tell it. The kernel has ended the ranks; `kill --leftovers` finds nothing."""
    dice = chance(victim)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", victim, dice)
        both = f"{ours(host, 'ddp-guard')} {ours(host, 'ddp-recorder')}"
        # stopped first, as neither may see the end of the other
        host.sh(f"kill -STOP {both} && kill -KILL {both}", "root", check=True)
        run.assert_ended(4, "lost", f"{host.name}: ")
        # `up` may start a new guard there before the lease ends
        causes = ("host lost" if victim else "head lost", "its guard and recorder were killed")
        assert any(cause in run.conclusion for cause in causes), run.conclusion
