"""`run.resume` for a script that saves on rank 0 only, on hosts without a shared disk: all ranks resume at one step."""

from __future__ import annotations

import json
import re

import pytest
from e2e.driver import lines_of, ok, orch, script, start, wait_for_state
from lab.lab import Lab
from lab.waiting import wait_until

from .test_head_lost import electing
from .test_spares import with_spare
from .trial import Trial, kill, trial, worker

# The sum of all steps so far, by gloo. Rank 0 saves step and sum; every rank loads them.
SAVES = """
import json, os, sys, time
import torch, torch.distributed as dist
snapshot = os.environ["DDP_ORCH_OUTPUT_DIR"] + "/snapshot.json"
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
step, total = json.load(open(snapshot)) if os.path.exists(snapshot) else (0, 0)
print("rank", rank, "resumes at", step, flush=True)
while step < int(sys.argv[1]):
    value = torch.full((1000,), float(step))
    dist.all_reduce(value)
    step, total = step + 1, total + int(value[0])
    if rank == 0:
        with open(snapshot + ".new", "w") as file:
            json.dump([step, total], file)
        os.rename(snapshot + ".new", snapshot)
    print("rank", rank, "step", step, "sum", total, flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
"""


def resumed_at(run: Trial, attempt: int) -> set[int]:
    """The steps at which the three ranks of an attempt resumed."""
    steps = [int(step) for step in re.findall(r"rank \d resumes at (\d+)", run.output)]
    return set(steps[3 * (attempt - 1) : 3 * attempt])


def step_of(run: Trial) -> int:
    return max(int(step) for step in re.findall(r"rank 0 step (\d+)", run.output))


@pytest.mark.timeout(600)
def test_all_ranks_resume_at_one_step_after_a_killed_rank_and_on_a_spare(lab4: Lab) -> None:
    with trial(lab4, with_spare(lab4, max_restarts=3, resume="head"), SAVES, "200") as run:
        run.wait_for("rank 1 step 20 ")
        kill(lab4.hosts[1], worker(lab4.hosts[1], run.run_id))
        run.wait_for("resumes at", times=6)
        begun = step_of(run)
        run.wait_for(f"rank 2 step {begun + 20} ")
        lab4.hosts[2].crash()
        run.assert_ended(0, "succeeded", within=200, attempt=3)
    for attempt, least in ((2, 20), (3, begun)):
        (step,) = resumed_at(run, attempt)
        assert step >= least
    assert f"rank 2 step 200 sum {3 * sum(range(200))}" in run.output
    assert re.search(r"node-3: 1 file .*\bnode-0\b", run.output)


@pytest.mark.timeout(600)
def test_hosts_that_were_cut_off_get_the_files_when_they_are_back(lab3: Lab) -> None:
    """Slow networks, too: the copies must not delay the beats of the link."""
    inventory = lab3.inventory(run={"max_restarts": 3, "resume": "union", "lease": 4})
    large = SAVES.replace(
        "rank = int",
        "if os.environ['RANK'] == '0':\n    open(snapshot + '.pt', 'wb').write(os.urandom(8 << 20))\nrank = int",
    )
    with trial(lab3, inventory, large, "150") as run:
        run.wait_for("rank 2 step 20 ")
        for host in lab3.hosts:
            host.rate("20mbit")
        lab3.hosts[2].cut()
        run.wait_for("first failure")
        lab3.hosts[2].heal()
        for host in lab3.hosts[:2]:
            host.rate("20mbit")
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    (step,) = resumed_at(run, 2)
    assert step >= 20
    assert re.search(r"node-2: 2 files .*\bnode-[01]\b", run.output)


@pytest.mark.timeout(600)
def test_a_first_copy_may_take_longer_than_a_guard_waits_for_its_controller(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"resume": "head", "launcher": "direct"}, cluster_addresses=True)
    saves = """
import os
path = os.environ["DDP_ORCH_OUTPUT_DIR"] + "/large"
print("rank", os.environ["RANK"], "has", os.path.exists(path), flush=True)
if os.environ["RANK"] == "0":
    open(path, "wb").write(os.urandom(8 << 20))
"""
    words = ("--name", "copied", "--", script(lab2, saves))
    ok(orch(lab2, "up", inventory, *words))
    for host in lab2.hosts:
        host.rate("1mbit", "cluster")
    run_id = start(lab2, inventory, *words)
    try:
        wait_for_state(lab2, inventory, run_id, "succeeded", 200)
        assert {line["text"] for line in lines_of(lab2, inventory, run_id, "--stream", "stdout")} == {
            "rank 0 has True",
            "rank 1 has True",
        }
    finally:
        for host in lab2.hosts:
            host.heal()


@pytest.mark.timeout(600)
def test_what_a_lost_head_had_saved_is_kept_when_it_is_back(lab3: Lab) -> None:
    """Nobody knows which files are worth more, so both are there, and the log says so."""
    with trial(lab3, electing(lab3, "2:3", resume="head"), SAVES, "100000") as run:
        run.wait_for("rank 2 step 40 ")
        lab3.hosts[0].crash()
        run.wait_for("resumes at", times=5, timeout=60)
        lab3.hosts[0].boot()
        run.wait_for("node-0 is back", timeout=90)
        kill(lab3.hosts[2], worker(lab3.hosts[2], run.run_id))
        run.wait_for("resumes at", times=8, timeout=90)
        events = ok(orch(lab3, "events", run.run_id, "-i", run.inventory)).stdout
        begun = step_of(run)
        run.wait_for(f"rank 2 step {begun + 20} ")
        again = ok(orch(lab3, "restart", run.run_id, "-d")).stdout.split()[0]
    words = ("logs", again, "-i", run.inventory, "--grep", "resumes at")
    wait_until(lambda: orch(lab3, *words).stdout.count("resumes") == 3, 60, "the next run has begun")
    steps = {int(step) for step in re.findall(r"resumes at (\d+)", orch(lab3, *words).stdout)}
    assert len(steps) == 1 and steps.pop() >= begun + 20  # not from the files of its first host
    ok(orch(lab3, "kill", again, "-i", run.inventory))
    (kept,) = lab3.hosts[0].home.rglob(".ddp-orch.kept/*/snapshot.json")
    assert json.loads(kept.read_text())[0] >= 40
    for told in (run.output, events):
        assert re.search(r"\bnode-0\b.*\bno other host\b", told)
        assert re.search(r"\bnode-0: 1 file .*\.kept/", told)
