"""A silent host is suspect first: the others may still reach it, or prove that it is gone."""

from __future__ import annotations

import os
import re

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import FOR_EVER, GLOO, chance, kill, ours, trial

SUSPECTED = "suspect:"


@pytest.mark.parametrize("elects", [False, True])
def test_a_broken_path_between_the_head_and_one_host_does_not_end_the_run(lab3: Lab, elects: bool) -> None:
    """For 20 s, longer than two leases. gloo waits, as TCP does."""
    with trial(lab3, lab3.inventory(run={"max_restarts": 3 * elects}), GLOO, "150", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.cut_path(lab3.hosts[0], lab3.hosts[2])
        run.wait_for("node-2 answers through node-1")
        run.pass_time(20)
        lab3.heal_paths()
        run.wait_for("no longer suspect: node-2")
        run.assert_ended(0, "succeeded", within=200)
    assert run.output.count(" step 149 sum 6") == 3
    assert re.search(SUSPECTED + r".*\bnode-2\b.*\bnode-1\b", run.output)
    assert "attempt 2 on" not in run.output


def test_a_rank_that_fails_behind_a_broken_path_ends_the_run_at_once(lab3: Lab) -> None:
    """Its status comes by the detour, and so does the order to stop."""
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.cut_path(lab3.hosts[0], lab3.hosts[2])
        run.wait_for("node-2 answers through node-1")
        pid = next(one.pid for one in lab3.hosts[2].marked(run.run_id) if "train.py" in " ".join(one.argv[-4:]))
        kill(lab3.hosts[2], pid)
        wait_until(lambda: not lab3.hosts[1].marked(run.run_id), 20, "the other host has stopped")
        lab3.heal_paths()
        run.assert_ended(1, "failed", "node-2: rank 2")


@pytest.mark.parametrize("elects", [False, True])
@pytest.mark.parametrize("lease", [8, 30])
def test_a_cut_of_the_management_network_does_not_end_a_run(lab3: Lab, lease: int, elects: bool) -> None:
    """For 20 s, on all hosts. The link moves to the data network; the rendezvous and gloo were there before."""
    hosts = [
        {"name": host.name, "address": host.address, "env": {"GLOO_SOCKET_IFNAME": host.links["cluster"].interface}}
        for host in lab3.hosts
    ]
    options = {"lease": lease, "max_restarts": 3 if elects else 0}
    with trial(lab3, lab3.inventory(hosts=hosts, run=options), GLOO, "600", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        for host in lab3.hosts:
            host.cut("ssh")
        run.pass_time(20)
        for host in lab3.hosts:
            host.heal("ssh")
        run.assert_ended(0, "succeeded", within=200)
    assert run.output.count(" step 599 sum 6") == 3
    assert "attempt 2 on" not in run.output


@pytest.mark.short
def test_a_guard_and_a_recorder_killed_together_are_noticed_at_once(lab3: Lab) -> None:
    """Their port refuses connections: nobody has to wait for a lease."""
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 2, chance())
        host = lab3.hosts[2]
        pids = "$(pgrep -x 'ddp-guard|ddp-recorder')"  # with children that have no name of their own yet
        host.sh(f"kill -STOP {pids}; kill -KILL {pids}", "root", check=True)
        run.assert_ended(4, "lost", "node-2: host lost")
    assert "node-2 refuses connections" in run.output
    assert SUSPECTED not in run.output


def test_a_host_without_power_is_noticed_within_10_seconds(lab3: Lab) -> None:
    """The limit here is generous; benchmarks/results has what was measured."""
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 2, chance())
        lab3.hosts[2].crash()
        run.assert_ended(4, "lost", "node-2: host lost")
    assert re.search(SUSPECTED + r".*\bnode-2\b.*\bnode-1\b", run.output)


def test_a_lost_host_whose_ssh_server_answers_is_said_to_be_up(lab3: Lab) -> None:
    sleeper = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
    with trial(lab3, lab3.inventory(run={"launcher": "direct"}), sleeper) as run:
        run.wait_for("begun", times=3)
        host = lab3.hosts[2]
        recorder = ours(host, "ddp-recorder")
        assert recorder is not None
        kill(host, recorder, "STOP")
        run.wait_for("first failure: node-2: host lost")
        assert "SSH server" in run.output
        kill(host, recorder, "CONT")
        run.assert_ended(4, "lost", "node-2: host lost")


@pytest.mark.timeout(3000)
def test_a_link_with_delay_and_loss_raises_no_false_alarm(lab3: Lab) -> None:
    """300 ms there and back between the head and the others, and 10 % each way. CHAOS_SECONDS=1800 for half an hour."""
    seconds = int(os.environ.get("CHAOS_SECONDS", "180"))
    sleeper = f"import time\nprint('begun', flush=True)\ntime.sleep({seconds})\n"
    with trial(lab3, lab3.inventory(run={"launcher": "direct"}), sleeper) as run:
        run.wait_for("begun", times=3)
        for host in lab3.hosts[1:]:
            host.delay(150)  # each way; between the two it is twice as much
            host.loss(10)
        run.assert_ended(0, "succeeded", within=seconds + 300)
    assert "attempt 2 on" not in run.output
