"""A host is cut off or loses its guard, and no spare is left: the run waits for it, and continues where it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from e2e.driver import assert_clean, guards
from lab.lab import Lab
from lab.waiting import wait_until

from .test_spares import with_spare
from .trial import FULL, GLOO, Trial, chance, kill, ours, trial

pytestmark = pytest.mark.timeout(900)
TRAINER = ["--epochs", "12", "--save-every", "10", "--log-every", "1", "--track", "none"]
STARTS = 300  # s for 40 steps: other work may share the machine
LONG_CUTS = [60, 300] if FULL else [60]  # s
_losses: list[dict[int, str]] = []


def rejoining(lab: Lab, **run: object) -> Path:
    return lab.inventory(cluster_addresses=True, run={"max_restarts": 3, "args": TRAINER, **run})


def losses(output: str) -> dict[int, str]:
    """The loss of each step, as the last attempt that took it printed it."""
    return {int(step): loss for step, loss in re.findall(r"step:(\d+)\b.*?\bloss:([\d.]+)", output)}


def undisturbed(lab: Lab) -> dict[int, str]:
    """The losses of a run that nothing happens to."""
    if not _losses:
        with Trial(lab, rejoining(lab)) as run:
            run.assert_ended(0, "succeeded", within=300)
            _losses.append(losses(run.output))
    return _losses[0]


def assert_continued(run: Trial, attempt: int) -> None:
    """It has succeeded from the newest snapshot, with the loss of a run that nothing happened to."""
    expected = undisturbed(run.lab)
    last = max(expected)
    found = losses(run.output)
    assert (max(found), found[last]) == (last, expected[last])
    resumed = re.findall(r"resumed .*?step:(\d+)", run.output)
    assert len(resumed) >= attempt - 1
    before = run.output.split("resumed ")[0]
    assert max(losses(before)) - int(resumed[0]) <= 20  # a snapshot every 10 steps, and one may be half written


def cut_for(run: Trial, victim: int, seconds: float) -> None:
    run.wait_for("step:40 ", timeout=STARTS)
    host = run.lab.hosts[victim]
    host.cut()
    run.pass_time(seconds)
    host.heal()


def test_a_cut_of_5_seconds_changes_nothing(lab3: Lab) -> None:
    expected = undisturbed(lab3)
    with Trial(lab3, rejoining(lab3)) as run:
        cut_for(run, chance().choice((0, 1, 2)), 5)
        run.assert_ended(0, "succeeded", within=300)
    assert losses(run.output) == expected


@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_run_continues_when_a_host_that_was_cut_off_is_back(lab3: Lab, victim: int) -> None:
    with Trial(lab3, rejoining(lab3)) as run:
        cut_for(run, victim, 15)
        run.assert_ended(0, "succeeded", within=300, attempt=2)
    assert_continued(run, 2)


@pytest.mark.parametrize("seconds", LONG_CUTS)
def test_a_run_outlasts_a_long_cut(lab3: Lab, seconds: int) -> None:
    victim = chance(seconds).choice((0, 1, 2))
    with Trial(lab3, rejoining(lab3)) as run:
        cut_for(run, victim, seconds)
        run.assert_ended(0, "succeeded", within=300, attempt=2)
    assert_continued(run, 2)


def test_a_run_waits_and_says_so(lab3: Lab) -> None:
    with Trial(lab3, rejoining(lab3)) as run:
        run.wait_for("step:40 ", timeout=STARTS)
        lab3.hosts[1].cut("cluster")
        run.wait_for("waiting for node-1")
        wait_until(lambda: run.fact()["state"] == "waiting", 20, "ps shows that the run waits")
        lab3.hosts[1].heal()
        run.wait_for("node-1 is back")
        run.assert_ended(0, "succeeded", within=300, attempt=2)


def test_a_run_whose_host_does_not_come_back_is_lost(lab3: Lab) -> None:
    with Trial(lab3, rejoining(lab3, rejoin_timeout=20)) as run:
        run.wait_for("step:40 ", timeout=STARTS)
        lab3.hosts[1].cut("cluster")
        run.assert_ended(4, "lost", "node-1: host lost", within=120)


def test_a_stop_ends_a_run_that_waits(lab3: Lab) -> None:
    """Also on the host that is cut off from the others: the laptop reaches it."""
    with Trial(lab3, rejoining(lab3)) as run:
        run.wait_for("step:40 ", timeout=STARTS)
        lab3.hosts[1].cut("cluster")
        run.wait_for("waiting for node-1")
        run.lab.run(["ddp-orch", "kill", "-i", str(run.inventory), run.run_id], timeout=120)
        assert run.ended(60) == 130
    wait_until(lambda: not guards(lab3), 15, "the guards have gone")
    assert_clean(lab3, run.run_id)
    assert run.fact()["state"] == "killed"


@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_killed_recorder_costs_no_restart(lab3: Lab, victim: int) -> None:
    with Trial(lab3, rejoining(lab3)) as run:
        run.wait_for("step:40 ", timeout=STARTS)
        pid = ours(lab3.hosts[victim], "ddp-recorder")
        assert pid is not None
        kill(lab3.hosts[victim], pid)
        run.assert_ended(0, "succeeded", within=300)


@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_killed_guard_costs_one_restart(lab3: Lab, victim: int) -> None:
    with Trial(lab3, rejoining(lab3)) as run:
        run.wait_for("step:40 ", timeout=STARTS)
        pid = ours(lab3.hosts[victim], "ddp-guard")
        assert pid is not None
        kill(lab3.hosts[victim], pid)
        run.assert_ended(0, "succeeded", within=300, attempt=2)
    assert_continued(run, 2)


def test_a_spare_takes_over_at_once_and_the_host_that_returns_is_the_next_spare(lab4: Lab) -> None:
    with trial(lab4, with_spare(lab4, max_restarts=1), GLOO, "600", "0.05") as run:
        run.wait_for_moment("random", 1, chance())
        lab4.hosts[1].cut()
        run.wait_for("in place of node-1")
        run.wait_for("rank 1 step 3 ", times=2)
        lab4.hosts[1].heal()
        run.wait_for("node-1 is back")
        lab4.hosts[3].crash()
        run.wait_for("in place of node-3")
        run.assert_ended(0, "succeeded", within=300, attempt=3)
    assert re.search(r"node-1:1 +\| rank 1 step 599 sum 6", run.output)
