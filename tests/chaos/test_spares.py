"""A host is lost, or fails again and again: a spare takes its place, or the others go on without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.lab import Lab

from .trial import GLOO, MOMENTS, Trial, chance, kill, trial, worker


def with_spare(lab: Lab, **run: object) -> Path:
    """The last host is the spare."""
    hosts = [{"name": host.name, "address": host.address, "spare": host is lab.hosts[-1]} for host in lab.hosts]
    return lab.inventory(hosts=hosts, run=run)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lost_host_is_replaced_by_the_spare(lab4: Lab, moment: str) -> None:
    dice = chance(moment)
    victim = dice.choice((1, 2))
    with trial(lab4, with_spare(lab4), GLOO, "100", "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        lab4.hosts[victim].crash()
        run.assert_ended(0, "succeeded", within=150, attempt=2)
    assert re.search(rf"first failure: node-{victim}: .*\blost\b", run.output)
    assert re.search(rf"\brestart\b.*\bnode-3\b.*\bnode-{victim}\b", run.output)
    assert re.search(rf"node-3:{victim} +\| rank {victim} step 99 sum 6", run.output)


def test_the_bundled_trainer_goes_on_from_its_snapshot_with_the_spare(lab4: Lab) -> None:
    with Trial(lab4, with_spare(lab4, args=["--save-every", "10", "--epochs", "9"])) as run:
        run.wait_for("step:40 ", timeout=300)
        lab4.hosts[2].crash()
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    resumed = re.search(r"resumed .*?step:(\d+)", run.output)
    assert resumed and int(resumed[1]) >= 30


@pytest.mark.parametrize("moment", MOMENTS)
def test_without_a_spare_the_run_goes_on_with_fewer_hosts(lab3: Lab, moment: str) -> None:
    dice = chance(moment)
    victim = dice.choice((1, 2))
    with trial(lab3, lab3.inventory(run={"nnodes": "2:3"}), GLOO, "100", "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        lab3.hosts[victim].cut()
        run.assert_ended(0, "succeeded", within=150, attempt=2)
    assert re.search(rf"\brestart\b.*\b2 hosts\b.*\bnode-{victim}\b", run.output)
    assert "rank 1 step 99 sum 3" in run.output


def test_a_host_that_fails_twice_gives_its_place_to_the_spare(lab4: Lab) -> None:
    inventory = with_spare(lab4, max_restarts=3)
    with trial(lab4, inventory, GLOO, "100", "0.05") as run:
        for attempt in (1, 2):
            run.wait_for("rank 1 step 3 ", times=attempt)
            kill(lab4.hosts[1], worker(lab4.hosts[1], run.run_id))
        run.assert_ended(0, "succeeded", within=200, attempt=3)
    assert re.search(r"\brestart 2 of 3\b.*\bnode-3\b.*\bnode-1\b", run.output)
