"""`diagnose` of real runs, and what a failed `up` ends with."""

from __future__ import annotations

import json

import pytest
from lab.lab import Lab

from .driver import assert_clean, ok, orch, script

RAISES = """
import os, time
rank = int(os.environ["RANK"])
print(f"rank {rank} step 1", flush=True)
if rank == 1:
    {}["missing"]
time.sleep(120)
"""
KILLED = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(120)
"""


@pytest.mark.parametrize(("text", "code"), [(RAISES, "script-exception"), (KILLED, "worker-sigkilled")])
def test_the_first_cause_of_a_failed_run_is_named_with_host_and_rank(lab2: Lab, text: str, code: str) -> None:
    inventory = lab2.inventory()
    up = ok(orch(lab2, "up", inventory, "--", script(lab2, text)), code=1)
    assert f"first cause: {code}, node-1, rank 1" in up.stderr
    assert len(up.stderr[up.stderr.index("first cause") :].splitlines()) <= 12
    told = json.loads(ok(orch(lab2, "diagnose", "-i", inventory, "--json")).stdout)
    first = told["findings"][0]
    assert (first["code"], first["hosts"], first["rank"]) == (code, ["node-1"], 1)
    assert_clean(lab2)


def test_a_run_that_succeeded_has_no_findings(lab2: Lab) -> None:
    inventory = lab2.inventory()
    ok(orch(lab2, "up", inventory, "--", script(lab2, "print('fine')")))
    assert json.loads(ok(orch(lab2, "diagnose", "-i", inventory, "--json")).stdout) == {
        "findings": [],
        "consequences": [],
    }
