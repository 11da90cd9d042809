"""A host loses its power and is booted again, with no other in its place: the run waits for it and continues."""

from __future__ import annotations

import json

import pytest
from e2e.driver import ok, orch
from lab.lab import Lab

from .trial import GLOO, trial

RESTARTS = {"max_restarts": 3, "grace": 2}


@pytest.mark.short
@pytest.mark.parametrize("victim", [2, pytest.param(0, id="head")])
def test_a_host_that_is_booted_again_takes_part_again_while_up_follows(lab3: Lab, victim: int) -> None:
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(run=RESTARTS), GLOO, "100", "0.05") as run:
        run.wait_for(f"rank {victim} step 5 ")
        host.crash()
        run.pass_time(15)
        host.boot()
        run.assert_ended(0, "succeeded", within=120, attempt=2)
        assert f"{host.name} is back" in run.errors


def test_revive_brings_a_host_back_that_nobody_follows(lab3: Lab) -> None:
    inventory = lab3.inventory(run=RESTARTS)
    with trial(lab3, inventory, GLOO, "100", "0.05") as run:
        run.wait_for("rank 1 step 5 ")
        run.up.kill()
        run.up.wait()
        lab3.hosts[1].crash()
        lab3.hosts[1].boot()
        revived = json.loads(ok(orch(lab3, "revive", "--json", "-i", inventory)).stdout)
        assert revived == {"run_id": run.run_id, "revived": ["node-1"], "failed": {}}
        assert json.loads(ok(orch(lab3, "revive", "--json", "-i", inventory)).stdout)["revived"] == []
        ok(orch(lab3, "logs", "-f", "-i", inventory))
        assert run.fact()["state"] == "succeeded"
    result = orch(lab3, "revive", "-i", inventory)
    assert result.returncode == 2 and "up " in result.stderr
