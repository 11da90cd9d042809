"""Links that lose or delay what they carry are no failure, for the run, its gang and its watchers."""

from __future__ import annotations

import pytest
from lab.lab import Lab

from .trial import GLOO, trial


@pytest.mark.parametrize("trouble", ["loss", "delay"])
def test_a_bad_link_raises_no_false_alarm(lab3: Lab, trouble: str) -> None:
    """From before the launch to the end. (With 20 % an SSH connection may not live through a launch: TCP gives up.)"""
    for host in lab3.hosts[1:]:
        if trouble == "loss":
            host.loss(8)
        else:
            host.delay(150)  # each way
    with trial(lab3, lab3.inventory(), GLOO, "40", "0.2") as run:
        run.assert_ended(0, "succeeded", within=400)
    assert run.output.count(" step 39 sum 6") == 3


def test_a_link_that_turns_bad_in_the_middle_raises_no_false_alarm(lab3: Lab) -> None:
    with trial(lab3, lab3.inventory(), GLOO, "60", "0.1") as run:
        run.wait_for("rank 1 step 5 ")
        lab3.hosts[1].delay(150)  # each way
        lab3.hosts[2].loss(20)  # each way: of five questions not four get an answer at once
        run.assert_ended(0, "succeeded", within=400)
