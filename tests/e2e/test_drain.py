"""`drain`: a host leaves a run that a user follows."""

from __future__ import annotations

import json

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, attached, code, guards, ok, orch, script

SAVE = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
network = os.environ["MASTER_ADDR"].rpartition(".")[0]
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "in", network, flush=True)
while os.environ["DDP_ORCH_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


def test_a_drained_host_is_free_and_the_run_that_is_followed_succeeds(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct", "nnodes": "2:3"})
    code(lab3)
    with attached(lab3, inventory, "--", script(lab3, SAVE)) as up:
        assert up.stdout and any("rank 2 of 3" in line for line in up.stdout)
        (run,) = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--json")).stdout)
        ok(orch(lab3, "drain", "-i", inventory, run["run_id"], "node-0"), 2)
        ok(orch(lab3, "drain", "-i", inventory, run["run_id"], "node-7"), 2)
        answer = json.loads(ok(orch(lab3, "drain", "-i", inventory, "--json", run["run_id"], "node-2")).stdout)
        assert answer == {"run_id": run["run_id"], "host": "node-2", "left": True}
        output = up.stdout.read()
        assert up.wait(60) == 0, output
    assert "rank 1 of 2" in output
    wait_until(lambda: not guards(lab3), 15, "the guards have gone")
    assert_clean(lab3, run["run_id"])
    (run,) = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--all", "--json")).stdout)
    assert run["state"] == "succeeded"


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_a_head_that_is_drained_hands_over_to_another_host(lab3: Lab, launcher: str) -> None:
    inventory = lab3.inventory(run={"launcher": launcher, "nnodes": "2:3", "max_restarts": 1})
    code(lab3)
    with attached(lab3, inventory, "--", script(lab3, SAVE)) as up:
        assert up.stdout
        first = next(line for line in up.stdout if "rank 2 of 3" in line)
        (run,) = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--json")).stdout)
        answer = json.loads(ok(orch(lab3, "drain", "-i", inventory, "--json", run["run_id"], "node-0")).stdout)
        assert answer == {"run_id": run["run_id"], "host": "node-0", "left": True}
        output = up.stdout.read()
        assert up.wait(60) == 0, output
    second = next(line for line in output.splitlines() if "rank 1 of 2" in line)
    assert second.split()[-1] == first.split()[-1]  # the network that was checked
    wait_until(lambda: not guards(lab3), 15, "the guards have gone")
    assert_clean(lab3, run["run_id"])
