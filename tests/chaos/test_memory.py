"""Snapshots in memory: a killed rank and a lost host cost no more steps than there are between two of them."""

from __future__ import annotations

import re

import pytest
from lab.lab import Lab

from .test_spares import with_spare
from .trial import Trial, kill

EVERY = 20  # steps
FLAGS = ["--epochs=10", "--log-every=1", "--track=none", f"--save-memory-every={EVERY}", "--save-every=1000"]


def rank_on(run: Trial, number: int) -> int:
    """The pid of the trainer on a host."""
    host = run.lab.hosts[number]
    (found,) = [
        process.pid
        for process in host.marked(run.run_id)
        if "trainer" in process.argv and "torch.distributed.run" not in process.argv
    ]
    return found


def wait_for_step(run: Trial, step: int) -> None:
    run.wait_for(f" step:{step} loss:", timeout=200)


def lost_steps(run: Trial, restart: int) -> int:
    """Between the last step before a restart and the step that the ranks resumed from."""
    before, resumed = run.output.split("resumed ")[restart - 1 : restart + 1]
    last = [int(step) for step in re.findall(r" step:(\d+) loss:", before)][-1]
    return last - int(re.findall(r"step:(\d+)", resumed)[0])


def end_of(run: Trial) -> str:
    (done,) = re.findall(r"done .*?(test_loss:\S+ test_acc:\S+)", run.output)
    return str(done)


@pytest.mark.timeout(900)
def test_a_killed_rank_and_a_lost_host_lose_few_steps_and_change_no_bit(lab4: Lab) -> None:
    with Trial(lab4, with_spare(lab4, args=FLAGS, memory_limit="64MiB")) as undisturbed:
        undisturbed.assert_ended(0, "succeeded", within=200)
    with Trial(lab4, with_spare(lab4, args=FLAGS, memory_limit="64MiB", max_restarts=2)) as run:
        wait_for_step(run, 2 * EVERY + 15)
        kill(lab4.hosts[1], rank_on(run, 1))
        run.wait_for("resumed ")
        wait_for_step(run, 4 * EVERY + 15)
        lab4.hosts[2].crash()
        run.assert_ended(0, "succeeded", within=300, attempt=3)
    assert [lost_steps(run, restart) <= EVERY for restart in (1, 2)] == [True, True]
    assert end_of(run) == end_of(undisturbed)


@pytest.mark.timeout(600)
def test_the_part_of_a_lost_host_comes_from_its_neighbour(lab4: Lab) -> None:
    """With --parallel fsdp, each host has a part of the model that no other rank has."""
    inventory = with_spare(lab4, args=[*FLAGS, "--parallel=fsdp"], memory_limit="64MiB")
    with Trial(lab4, inventory) as run:
        wait_for_step(run, 3 * EVERY + 15)
        lab4.hosts[2].crash()
        run.assert_ended(0, "succeeded", within=300, attempt=2)
    assert lost_steps(run, 1) <= EVERY


@pytest.mark.timeout(900)
def test_the_newest_snapshot_survives_the_host_that_saved_it_and_led_the_run(lab4: Lab) -> None:
    """Rank 0, which saves, runs on the head. Another host is elected, and has the copy."""
    options = {"args": [*FLAGS, "--epochs=5"], "memory_limit": "64MiB", "launcher": "direct"}
    with Trial(lab4, with_spare(lab4, **options)) as undisturbed:
        undisturbed.assert_ended(0, "succeeded", within=400)
    with Trial(lab4, with_spare(lab4, **options, head_lost="elect", max_restarts=1)) as run:
        wait_for_step(run, EVERY + 15)
        lab4.hosts[0].crash()
        run.assert_ended(0, "succeeded", within=400, attempt=2)
    assert "node-0: head lost" in run.output
    assert lost_steps(run, 1) <= EVERY
    assert end_of(run) == end_of(undisturbed)
