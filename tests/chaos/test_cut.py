"""A host is cut off: for less than a lease nobody minds, for longer both sides stop, each by itself."""

from __future__ import annotations

import json

import pytest
from e2e.driver import assert_clean, guards, lines_of, ok, orch, runs, script, start
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import FOR_EVER, GLOO, MOMENTS, chance, trial


@pytest.mark.short
def test_a_host_cut_off_from_the_others_is_lost_and_stops_by_itself(lab3: Lab) -> None:
    """The laptop still reaches all of them, and is no part of it."""
    dice = chance()
    with trial(lab3, lab3.inventory(cluster_addresses=True), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 2, dice)
        lab3.hosts[2].cut("cluster")
        run.assert_ended(4, "lost", "node-2: host lost")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_host_cut_off_for_longer_than_a_lease_is_lost_and_stops_by_itself(
    lab3: Lab, victim: int, moment: str
) -> None:
    """`kill` reaches it afterwards, and has nothing to do. With the head cut off all hosts stop by themselves."""
    dice = chance(victim, moment)
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment(moment, victim, dice)
        host.cut()
        lost = "host lost" if victim else "head lost"
        run.assert_ended(4, "lost", f"{host.name}: {lost}")
    host.heal()
    fact = run.fact()
    assert fact["state"] == "lost"
    assert json.loads(ok(orch(lab3, "kill", "--json", "-i", run.inventory)).stdout)["killed"] == []


@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_host_cut_off_for_less_than_a_lease_is_not_lost(lab3: Lab, victim: int) -> None:
    dice = chance(victim)
    with trial(lab3, lab3.inventory(), GLOO, "300", "0.05") as run:
        for _ in range(2):
            run.wait_for_moment("random", victim, dice)
            lab3.hosts[victim].cut()
            seconds = dice.uniform(1, 4)
            print(f"cut off for {seconds:.1f} s")
            run.pass_time(seconds)
            lab3.hosts[victim].heal()
        run.assert_ended(0, "succeeded", within=120)


def test_a_cut_host_without_its_controller_stops_too(lab3: Lab) -> None:
    """No laptop is there to tell anybody."""
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 1, chance())
        run.up.kill()
        lab3.hosts[1].cut("ssh", "cluster")
        wait_until(lambda: not lab3.marked(run.run_id), 40, "all hosts have stopped")
        wait_until(lambda: not guards(lab3), 15, "the guards have said their farewell")
        assert_clean(lab3)
    lab3.hosts[1].heal()
    assert run.fact()["state"] == "lost"


USES_UP = """
import os, sys, time
if os.environ["DDP_ORCH_ATTEMPT"] == "1":
    sys.exit(1)
print("begins", flush=True)
time.sleep(1e6)
"""


def test_a_host_that_was_cut_off_when_the_run_ended_is_told_of_and_does_not_change_the_end(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct", "max_restarts": 1, "rejoin_timeout": 300, "grace": 1})
    run_id = start(lab3, inventory, "--", script(lab3, USES_UP))
    wait_until(lambda: len(lines_of(lab3, inventory, run_id, "--grep", "begins")) == 3, 60, "all ranks run again")
    lab3.hosts[2].cut()
    shown = ("--hosts", "!node-2", "-i", inventory)
    wait_until(lambda: "lost" in orch(lab3, "ps", "--all", *shown).stdout, 60, "the run is lost")
    lab3.hosts[2].heal()
    told = ok(orch(lab3, "ps", "-i", inventory)).stderr
    assert "node-2" in told and f"ddp-orch kill {run_id}" in told
    assert "node-2" in ok(orch(lab3, "wait", run_id, "-i", inventory, timeout=60), 4).stderr
    before = ok(orch(lab3, "events", run_id, "-i", inventory)).stdout
    ok(orch(lab3, "kill", run_id, "-i", inventory))
    assert ok(orch(lab3, "events", run_id, "-i", inventory)).stdout == before
    assert runs(lab3, inventory)[run_id]["state"] == "lost"
    assert f"kill {run_id}" not in ok(orch(lab3, "ps", "-i", inventory)).stderr
    assert_clean(lab3)
