"""Two runs share their hosts, of one user or of two: what befalls one is none of the other's business."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from e2e.driver import assert_clean, ok, orch
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, chance, kill, trial, worker

TELLING = GLOO.replace('"step", step', '"of", sys.argv[3], "step", step')


def inventory_of(lab: Lab, user: str) -> Path:
    return lab.inventory(name=f"{user}.yaml", defaults={"user": user, "python": lab.python})


@pytest.mark.parametrize("second", ["ann", "bob"])
def test_a_run_that_dies_beside_another_leaves_it_alone(lab2: Lab, second: str) -> None:
    dice = chance(second)
    ann, other = inventory_of(lab2, "ann"), inventory_of(lab2, second)
    with trial(lab2, ann, TELLING, "200", "0.05", "first") as survivor:
        with trial(lab2, other, TELLING, FOR_EVER, "0.05", "second") as victim:
            survivor.wait_for("rank 1 of first step 3 ", 200)
            victim.wait_for("rank 1 of second step 3 ", 200)
            host = lab2.hosts[dice.randrange(2)]
            kill(host, worker(host, victim.run_id))
            assert victim.ended(60) == 1
            assert not lab2.marked(victim.run_id)
        survivor.assert_ended(0, "succeeded", within=120)
    assert "of second" not in survivor.output and "of first" not in victim.output
    for rank in range(2):
        steps = re.findall(rf"rank {rank} of first step (\d+) ", survivor.output)
        assert steps == [str(number) for number in range(200)]


def test_a_bare_kill_ends_no_run_of_another_user(lab2: Lab) -> None:
    ann, bob = inventory_of(lab2, "ann"), inventory_of(lab2, "bob")
    with trial(lab2, bob, TELLING, FOR_EVER, "0.05", "bob") as run:
        run.wait_for("rank 1 of bob step 3 ")
        ended = ok(orch(lab2, "kill", "--all", "--json", "-i", ann))
        assert json.loads(ended.stdout)["killed"] == []
        run.pass_time(1.0)
        ok(orch(lab2, "kill", "-i", bob, "--grace", "1"))
        assert run.ended(60) == 130
    assert_clean(lab2)


def test_two_runs_die_at_the_same_moment(lab2: Lab) -> None:
    inventory = lab2.inventory()
    endless = (lab2, inventory, TELLING, FOR_EVER, "0.05")
    with trial(*endless, "one") as one, trial(*endless, "other") as other:
        one.wait_for("rank 1 of one step 3 ", 200)
        other.wait_for("rank 0 of other step 3 ", 200)
        for number, run in enumerate((one, other)):
            kill(lab2.hosts[number], worker(lab2.hosts[number], run.run_id))
        assert (one.ended(60), other.ended(60)) == (1, 1)
    assert_clean(lab2)
    assert "failed: node-0: rank 0" in one.conclusion
    assert "failed: node-1: rank 1" in other.conclusion
