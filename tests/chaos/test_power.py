"""A host loses its power. The others stop within the lease; with another head the run of that name goes on."""

from __future__ import annotations

import json
import re

import pytest
from e2e.driver import ok, orch
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, MOMENTS, Trial, chance, trial


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_host_that_loses_its_power_ends_the_run_on_the_others(lab3: Lab, moment: str) -> None:
    dice = chance(moment)
    victim = dice.choice((1, 2))
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        host.crash()
        run.assert_ended(4, "lost", f"{host.name}: host lost")
    host.boot()
    after = run.fact()
    assert after["state"] == "lost"
    assert {node["state"] for node in after["nodes"]} == {"lost"}
    assert json.loads(ok(orch(lab3, "kill", "--json", "-i", run.inventory)).stdout)["killed"] == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_host_that_is_shut_down_is_the_first_failure_though_its_peers_notice_at_once(lab3: Lab, moment: str) -> None:
    """Its kernel resets the connections of its rank: those of the others fail of that within milliseconds."""
    dice = chance(moment)
    victim = dice.choice((1, 2))
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        host.sh("kill -9 -1")
        host.crash()
        run.assert_ended(4, "lost", f"{host.name}: host lost")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_head_that_loses_its_power_ends_the_run_on_the_others(lab3: Lab, moment: str) -> None:
    dice = chance(moment)
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, 0, dice)
        lab3.hosts[0].crash()
        run.assert_ended(4, "lost", "node-0: head lost")
    assert_events_of_lost_head(run)
    lab3.hosts[0].boot()
    assert {node["state"] for node in run.fact()["nodes"]} == {"lost"}
    assert_events_of_lost_head(run)


def assert_events_of_lost_head(run: Trial) -> None:
    listed = ok(orch(run.lab, "events", run.run_id, "-i", run.inventory, "--json")).stdout
    found = [(event["kind"], event["what"]) for event in json.loads(listed)["events"]]
    assert [kind for kind, _ in found] == ["attempt", "failure", "end"]
    assert found[1][1] == "node-0: head lost" and "lost" in found[2][1]


def test_a_run_whose_head_is_gone_goes_on_with_another_from_its_snapshot(lab3: Lab) -> None:
    options = {"args": ["--save-every", "10", "--epochs", "9"]}
    with Trial(lab3, lab3.inventory(run=options), "--name", "survivor") as run:
        run.wait_for("step:40 ", timeout=300)
        lab3.hosts[0].crash()
        run.assert_ended(4, "lost", "node-0: head lost")
    hosts = [{"name": host.name, "address": host.address} for host in lab3.hosts[1:]]
    inventory = lab3.inventory(name="others.yaml", hosts=hosts, head="node-1", run=options)
    again = ok(orch(lab3, "up", inventory, "--name", "survivor"))
    resumed = re.search(r"resumed .*?step:(\d+)", again.stdout)
    assert resumed and int(resumed[1]) >= 30, again.stdout[-3000:]
