"""All hosts have one home, as on NFS: a fault of one is told as its own, and what is ended is that of the run."""

from __future__ import annotations

import json
from collections.abc import Callable

from e2e.driver import ok, orch
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, chance, kill, ours, trial, worker


def test_faults_on_hosts_with_one_home_are_told_apart(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3, shared_home=True)
    dice = chance()
    victim = dice.randrange(3)
    host = lab.hosts[victim]
    with trial(lab, lab.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", victim, dice)
        kill(host, worker(host, run.run_id))
        run.assert_ended(1, "failed", f"{host.name}: rank {victim}")
    with trial(lab, lab.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 1, dice)
        guard = ours(lab.hosts[1], "ddp-guard")
        assert guard is not None
        kill(lab.hosts[1], guard)
        run.assert_ended(1, "failed", "node-1: the guard")
    with trial(lab, lab.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 2, dice)
        lab.hosts[2].crash()
        run.assert_ended(4, "lost", "node-2: host lost")
    lab.hosts[2].boot()
    assert json.loads(ok(orch(lab, "kill", "--json", "-i", run.inventory)).stdout)["killed"] == []
