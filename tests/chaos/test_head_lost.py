"""The head of a run is lost: the other hosts elect one of them and go on, and never do two of them lead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from e2e.driver import assert_clean, lines_of, ok, orch, runs, script, start, wait_for_state
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import Trial, chance, trial

pytestmark = pytest.mark.timeout(600)
# A line a step, also into the output folder, until there is a file `end` in the home of the host
STEPS = """
import os, time
attempt, rank = os.environ["DDP_ORCH_ATTEMPT"], os.environ["RANK"]
steps = open(os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "steps"), "a")
number = 0
while not os.path.exists(os.path.expanduser("~/end")):
    print("attempt", attempt, "rank", rank, "of", os.environ["WORLD_SIZE"], "step", number, flush=True)
    print(time.time_ns(), attempt, file=steps, flush=True)
    time.sleep(0.05)
    number += 1
"""


def electing(lab: Lab, nnodes: str, hosts: list[dict[str, str]] | None = None, **run: object) -> Path:
    options = {"max_restarts": 3, "nnodes": nnodes, "head_lost": "elect", "launcher": "direct", "grace": 2, **run}
    return lab.inventory(cluster_addresses=True, run=options, **({"hosts": hosts} if hosts else {}))


def let_it_end(lab: Lab) -> None:
    for host in lab.hosts:
        if host.is_up:
            host.sh("touch end", check=True)


def steps(host: Host) -> list[tuple[int, int]]:
    """When a rank of this host took a step of which attempt."""
    lines = [line.split() for path in host.home.rglob("steps") for line in path.read_text().splitlines()]
    return [(int(at), int(attempt)) for at, attempt in lines]


def assert_one_at_a_time(hosts: Sequence[Host], attempts: int) -> None:
    """No rank of any host took a step of an attempt after the first step of the next one."""
    taken = [step for host in hosts for step in steps(host)]
    spans = [[at for at, number in taken if number == attempt] for attempt in range(1, attempts + 1)]
    assert all(spans)
    for earlier, later in pairwise(spans):
        assert max(earlier) < min(later)


@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.short), 5])
def test_a_run_goes_on_when_its_head_loses_its_power(make_lab: Callable[[int], Lab], count: int) -> None:
    lab = make_lab(count)
    with trial(lab, electing(lab, f"2:{count}"), STEPS) as run:
        for rank in range(count):
            run.wait_for(f"attempt 1 rank {rank} of {count} step 10\n")
        lab.hosts[0].crash()
        for rank in range(count - 1):
            run.wait_for(f"attempt 2 rank {rank} of {count - 1} step 10\n", timeout=60)
        assert "node-1 leads now" in run.output
        let_it_end(lab)
        run.assert_ended(0, "succeeded", within=90, attempt=2)
    assert "node-0: head lost" in run.output
    assert_one_at_a_time(lab.hosts, 2)


@pytest.mark.parametrize("lost", [(0, 1), (3, 4)], ids=["head", "others"])
def test_of_two_parts_of_a_network_only_the_larger_one_goes_on(
    make_lab: Callable[[int], Lab], lost: tuple[int, int]
) -> None:
    lab = make_lab(5)
    left = [number for number in range(5) if number not in lost]
    with trial(lab, electing(lab, "2:5"), STEPS) as run:
        for rank in range(5):
            run.wait_for(f"attempt 1 rank {rank} of 5 step 10\n")
        for here in lost:
            for there in left:
                lab.cut_path(lab.hosts[here], lab.hosts[there])
        for rank in range(3):
            run.wait_for(f"attempt 2 rank {rank} of 3 step 10\n", timeout=90)
        ended = {number: len(steps(lab.hosts[number])) for number in lost}
        run.wait_for("attempt 2 rank 0 of 3 step 200\n")
        assert {number: len(steps(lab.hosts[number])) for number in lost} == ended
        lab.heal_paths()
        for number in lost:
            run.wait_for(f"node-{number} is back", timeout=90)
        let_it_end(lab)
        run.assert_ended(0, "succeeded", within=90, attempt=2)
    assert_one_at_a_time(lab.hosts, 2)


@pytest.mark.short
def test_a_run_is_found_and_stopped_without_its_first_host(lab3: Lab) -> None:
    inventory = electing(lab3, "2:3")
    run_id = start(lab3, inventory, "--", script(lab3, STEPS))
    wait_until(lambda: lines_of(lab3, inventory, run_id, "--grep", "rank 2 of 3 step 10$"), 60, "the run trains")
    lab3.hosts[0].crash()
    wait_until(
        lambda: re.search("attempt 2 rank 1 of 2 step 10$", orch(lab3, "logs", run_id, "-i", inventory).stdout, re.M),
        60,
        "the others go on",
    )
    listed = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--json"), 4).stdout)
    assert [(run["state"], run["attempt"]) for run in listed] == [("running", 2)]
    ok(orch(lab3, "kill", run_id, "-i", inventory), 4)  # node-0 cannot be asked
    (run,) = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--all", "--json"), 4).stdout)
    assert run["state"] == "killed"
    assert_clean(lab3, run_id)


# --- two hosts and a witness


def witnessed(lab: Lab) -> Path:
    """The last host of the lab only votes."""
    *hosts, witness = [
        {"name": host.name, "address": host.address, "cluster_address": host.cluster_address} for host in lab.hosts
    ]
    return electing(lab, "1:2", hosts=hosts, head_lost="auto", witness=witness)


@pytest.mark.short
def test_one_of_two_hosts_goes_on_without_the_head_if_there_is_a_witness(lab3: Lab) -> None:
    inventory = witnessed(lab3)
    with trial(lab3, inventory, STEPS) as run:
        for rank in range(2):
            run.wait_for(f"attempt 1 rank {rank} of 2 step 10\n")
        (listed,) = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--json")).stdout)
        assert [(node["node_rank"], node["witness"]) for node in listed["nodes"]] == [
            (0, False),
            (1, False),
            (None, True),
        ]
        lab3.hosts[0].crash()
        run.wait_for("attempt 2 rank 0 of 1 step 10\n", timeout=60)
        assert "node-1 leads now" in run.output
        let_it_end(lab3)
        run.assert_ended(0, "succeeded", within=90, attempt=2)
    assert not steps(lab3.hosts[2])
    assert_one_at_a_time(lab3.hosts, 2)


def test_a_head_that_is_cut_off_from_the_other_host_and_the_witness_stops(lab3: Lab) -> None:
    with trial(lab3, witnessed(lab3), STEPS) as run:
        for rank in range(2):
            run.wait_for(f"attempt 1 rank {rank} of 2 step 10\n")
        for other in lab3.hosts[1:]:
            lab3.cut_path(lab3.hosts[0], other)
        run.wait_for("attempt 2 rank 0 of 1 step 10\n", timeout=90)
        ended = len(steps(lab3.hosts[0]))
        run.wait_for("attempt 2 rank 0 of 1 step 200\n")
        assert len(steps(lab3.hosts[0])) == ended
        lab3.heal_paths()
        run.wait_for("node-0 is back", timeout=90)
        let_it_end(lab3)
        run.assert_ended(0, "succeeded", within=90, attempt=2)
    assert_one_at_a_time(lab3.hosts, 2)


def test_a_witness_may_be_lost_and_come_back(lab3: Lab) -> None:
    with trial(lab3, witnessed(lab3), STEPS) as run:
        for rank in range(2):
            run.wait_for(f"attempt 1 rank {rank} of 2 step 10\n")
        lab3.hosts[2].crash()
        run.wait_for("node-2 was lost", timeout=60)
        lab3.hosts[2].boot()
        run.wait_for("node-2 is back", timeout=90)
        lab3.hosts[0].crash()
        run.wait_for("attempt 2 rank 0 of 1 step 10\n", timeout=60)
        let_it_end(lab3)
        run.assert_ended(0, "succeeded", within=90, attempt=2)


def test_an_old_head_that_is_booted_again_takes_part_as_a_spare(lab3: Lab) -> None:
    with trial(lab3, electing(lab3, "2:3"), STEPS) as run:
        run.wait_for("attempt 1 rank 2 of 3 step 10\n")
        lab3.hosts[0].crash()
        run.wait_for("attempt 2 rank 1 of 2 step 10\n", timeout=60)
        lab3.hosts[0].boot()
        run.wait_for("node-0 is back", timeout=90)
        lab3.hosts[2].crash()
        run.wait_for("attempt 3 rank 1 of 2 step 10\n", timeout=60)
        let_it_end(lab3)
        run.assert_ended(0, "succeeded", within=90, attempt=3)
    assert_one_at_a_time(lab3.hosts, 3)


def test_a_cut_of_5_seconds_changes_nothing(lab3: Lab) -> None:
    victim = lab3.hosts[chance().choice((0, 1, 2))]
    with trial(lab3, electing(lab3, "2:3"), STEPS) as run:
        run.wait_for("attempt 1 rank 2 of 3 step 10\n")
        victim.cut()
        run.pass_time(5)
        victim.heal()
        run.pass_time(20)
        let_it_end(lab3)
        run.assert_ended(0, "succeeded", within=90)


def test_the_bundled_trainer_goes_on_from_its_snapshot_with_another_head(lab3: Lab) -> None:
    options = {"launcher": "torchrun", "args": ["--save-every", "10", "--epochs", "9"]}
    with Trial(lab3, electing(lab3, "2:3", **options)) as run:
        run.wait_for("step:40 ", timeout=300)
        lab3.hosts[0].crash()
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    resumed = re.search(r"resumed .*?step:(\d+)", run.output)
    assert resumed and int(resumed[1]) >= 30


def test_a_detached_run_ends_without_its_first_host(lab3: Lab) -> None:
    inventory = electing(lab3, "2:3")
    run_id = start(lab3, inventory, "--", script(lab3, STEPS))
    wait_until(lambda: lines_of(lab3, inventory, run_id, "--grep", "rank 2 of 3 step 10$"), 60, "the run trains")
    lab3.hosts[0].crash()
    let_it_end(lab3)
    lab3.hosts[0].boot()
    wait_for_state(lab3, inventory, run_id, "succeeded", 60)
    assert runs(lab3, inventory)[run_id]["state"] == "succeeded"


TRAIL = """
import os, sys, time
trail = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "trail")
print("finds", *(open(trail).read().split() if os.path.exists(trail) else []), flush=True)
print(sys.argv[1], file=open(trail, "a"), flush=True)
while not os.path.exists(os.path.expanduser("~/end")):
    time.sleep(0.05)
"""


def test_a_host_that_was_added_gets_the_outputs_of_the_elected_head(make_lab: Callable[[int], Lab]) -> None:
    lab = make_lab(4)
    inventory = electing(lab, "2:3", resume="head")
    run_id = start(lab, inventory, "--hosts", "node-[0-2]", "--", script(lab, TRAIL), "{host}")

    def found(attempt: int) -> list[tuple[str, str]]:
        argv = ("logs", run_id, "-i", inventory, "--json", "--attempt", str(attempt), "--grep", "finds")
        lines = [json.loads(line) for line in orch(lab, *argv).stdout.splitlines()]
        return sorted((line["host"], line["text"].removeprefix("finds").strip()) for line in lines)

    wait_until(lambda: len(found(1)) == 3, 60, "the run trains")
    ok(orch(lab, "add", "-i", inventory, run_id, "node-3"))
    wait_until(lambda: orch(lab, "logs", run_id, "-i", inventory, "--grep", "node-3 was added").stdout, 30, "it joined")
    lab.hosts[0].crash()
    wait_until(lambda: len(found(2)) == 3, 90, "the others go on")
    assert found(2) == [(f"node-{number}", "node-1") for number in (1, 2, 3)]
    let_it_end(lab)
    lab.hosts[0].boot()
    wait_for_state(lab, inventory, run_id, "succeeded", 60)
