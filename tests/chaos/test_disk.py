"""The disk of the journal is full: training never notices, what was lost is said, and the end is still recorded."""

from __future__ import annotations

import pytest
from e2e.driver import ok, orch
from lab.lab import Lab

from .trial import FULL, GLOO, MOMENTS, chance, trial

TALKING = GLOO.replace(
    "    misbehave()\n    time", '    print(("x" * 99 + "\\n") * 5000, end="", flush=True)\n    time'
)
MEGABYTES = 150 if FULL else 40  # half of them, a step each


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_disk_that_is_full_does_not_disturb_training(lab2: Lab, moment: str) -> None:
    """`random`: somebody else fills it, and frees it later. `worst`: it is full as the ranks begin, to the end."""
    dice = chance(moment)
    host = lab2.hosts[1]
    folder = "/home/ann/.local/state/ddp-orch"
    host.disk(folder, "100m")
    with trial(lab2, lab2.inventory(), TALKING, str(MEGABYTES), "0.02") as run:
        run.wait_for_moment(moment, 1, dice)
        host.sh(f"cat /dev/zero > {folder}/filler")
        if moment == "random":
            run.wait_for("rank 0 step 30 ")
            host.sh(f"rm {folder}/filler", check=True)
        run.assert_ended(0, "succeeded", within=150)
    text = ok(orch(lab2, "logs", run.run_id, "-i", run.inventory, "--rank", "0")).stdout
    assert f"rank 0 step {MEGABYTES - 1} " in text
    if moment == "worst":
        host.sh(f"rm {folder}/filler", check=True)
        assert run.output.count("rank 1 step ") < MEGABYTES, "its disk was not full"
