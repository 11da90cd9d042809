"""Scripts that misbehave: deaf to SIGTERM, with children in other sessions, in a flood; or one rank just leaves."""

from __future__ import annotations

import re

import pytest
from e2e.driver import assert_clean, ok, orch, script, start, wait_for_state
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import FOR_EVER, GLOO, chance, fault, kill, trial

# 50 MB/s from every rank and from its children, which have sessions of their own and are as deaf
WILD = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        break
block = (b"y" * 99 + b"\\n") * 2500
while True:
    begun = time.monotonic()
    os.write(1, block)
    time.sleep(max(0.0, len(block) * 4 / 50e6 - time.monotonic() + begun))
"""


@pytest.mark.parametrize("end", ["kill", "SIGKILL"])
def test_deaf_forking_flooding_ranks_are_ended_to_the_last(lab2: Lab, end: str) -> None:
    inventory = lab2.inventory(run={"keep": {"log_size": "256MiB"}})
    run_id = start(lab2, inventory, "--", script(lab2, WILD))
    wait_until(lambda: all(len(host.marked(run_id)) >= 5 for host in lab2.hosts), 120, "all have forked")

    def written() -> bool:
        return all(
            sum(part.stat().st_size for part in host.home.glob(f".local/state/ddp-orch/*/runs/{run_id}/log/*.seg"))
            > 1e8
            for host in lab2.hosts
        )

    wait_until(written, 120, "the flood has reached 100 MB on each host")
    if end == "kill":
        ok(orch(lab2, "kill", run_id, "-i", inventory, "--grace", "1"))
        wait_for_state(lab2, inventory, run_id, "killed")
    else:
        host = lab2.hosts[1]
        ranks = [
            one for one in host.marked(run_id) if "RANK" in one.environ and "torch.distributed.run" not in one.argv
        ]
        kill(host, min(one.pid for one in ranks))
        run = wait_for_state(lab2, inventory, run_id, "failed")
        assert [node["signal"] for node in run["nodes"]][1] == "SIGKILL"
    assert_clean(lab2)


def test_a_rank_that_leaves_with_exit_code_0_ends_the_run(lab3: Lab) -> None:
    """The others fail in their next sum: one of them is the first failure, as the one that left has not failed."""
    dice = chance()
    victim = dice.randrange(3)
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", victim, dice)
        fault(lab3.hosts[victim], "leave")
        run.assert_ended(1, "failed", within=90)
    named = re.search(r"failed: node-(\d): rank (\d)", run.conclusion)
    assert named and named[1] == named[2] != str(victim)


def test_a_rank_that_leaves_before_all_have_met_is_found_by_the_silence(lab3: Lab) -> None:
    """The others would wait for it for half an hour, and nothing has failed."""
    fault(lab3.hosts[2], "leave")
    with trial(lab3, lab3.inventory(run={"stall_timeout": 30}), GLOO, FOR_EVER, "0.05") as run:
        run.assert_ended(1, "failed", "all hosts: ", within=150)
    assert "init_process_group" in run.output, "the stacks do not show where they hung"
