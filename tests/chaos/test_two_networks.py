"""Hosts with two networks, of which the one of the ranks is cut: the hosts still hear each other on the other one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.driver import ok, orch
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import FOR_EVER, GLOO, trial

TELL = {"command": "cat >> ~/news.jsonl"}  # in the home directory of the head


def with_gloo_on_the_data_network(lab: Lab, **run: object) -> Path:
    """The link and the rendezvous are on the other one."""
    hosts = [
        {"name": host.name, "address": host.address, "env": {"GLOO_SOCKET_IFNAME": host.links["cluster"].interface}}
        for host in lab.hosts
    ]
    return lab.inventory(hosts=hosts, run=run, notify=TELL)


def with_all_on_the_data_network(lab: Lab, **run: object) -> Path:
    """`check` has measured that it is faster. The link may change to the other one."""
    inventory = lab.inventory(run=run, notify=TELL)
    for host in lab.hosts:
        host.rate("50mbit", "ssh")
    ok(orch(lab, "check", "-i", inventory))
    return inventory


@pytest.mark.parametrize(
    ("write", "elects"),
    [
        (with_gloo_on_the_data_network, False),
        (with_gloo_on_the_data_network, True),
        (with_all_on_the_data_network, False),
        (with_all_on_the_data_network, True),
    ],
)
def test_a_cut_of_the_network_of_the_ranks_ends_the_attempt(
    lab3: Lab, write: Callable[..., Path], elects: bool
) -> None:
    inventory = write(lab3, max_restarts=3, **({} if elects else {"head_lost": "stop"}))
    with trial(lab3, inventory, GLOO, "600", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[2].cut("cluster")
        run.wait_for("does not reach")
        assert [run.fact()["state"], run.fact()["suspects"]] == ["suspect", ["node-2"]]
        run.wait_for("a restart follows")
        run.wait_for("not used until this is fixed")
        assert run.fact()["state"] == "waiting"
        lab3.hosts[2].heal("cluster")
        run.wait_for("node-2 is healthy again")
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    assert re.search(r"first failure: node-2: .* node-0 at 10\.78\.0\.1\b", run.output)
    wait_until(lambda: "succeeded" in lab3.hosts[0].sh("cat ~/news.jsonl").stdout, 20, "the end is told")
    news = [json.loads(line) for line in lab3.hosts[0].sh("cat ~/news.jsonl").stdout.splitlines()]
    assert [each["state"] for each in news] == ["waiting", "restarting", "succeeded"]
    assert "node-2 to be" in news[0]["text"]
    diagnosed = ok(orch(lab3, "diagnose", run.run_id, "-i", inventory)).stdout
    assert re.search(r"host-lost, node-2\b", diagnosed) and "10.78.0.1" in diagnosed


def test_a_cut_of_the_network_of_the_ranks_at_the_head_names_the_head(lab3: Lab) -> None:
    with trial(lab3, with_gloo_on_the_data_network(lab3), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[0].cut("cluster")
        run.assert_ended(4, "lost", "node-0: host lost", within=120)


@pytest.mark.short
def test_a_head_whose_network_of_the_ranks_is_cut_gives_up_the_lead(lab3: Lab) -> None:
    with trial(lab3, with_gloo_on_the_data_network(lab3, max_restarts=3, nnodes="2:3"), GLOO, "400", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[0].cut("cluster")
        run.wait_for("rank 1 step 20 ", times=2)
        assert {node["host"]: node["role"] for node in run.fact()["nodes"]}["node-0"] == "spare"
        lab3.hosts[0].heal("cluster")
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    assert re.search(r"first failure: node-0: .* at 10\.78\.0\.1\b", run.output)


def test_a_host_that_is_cut_off_is_not_healthy_for_another_head_either(lab3: Lab) -> None:
    """The old head has lost its power, and the others do not reach it: only a try shows which of both is cut off."""
    with trial(lab3, with_gloo_on_the_data_network(lab3, max_restarts=5, nnodes="2:3"), GLOO, "700", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[2].cut("cluster")
        run.wait_for("rank 1 step 20 ", times=2)
        lab3.hosts[0].crash()
        run.wait_for("[nccl-wrong-nic]", times=2)
        assert "attempt 3 on" not in run.output and "node-2 is healthy again" not in run.output
        lab3.hosts[2].heal("cluster")
        run.wait_for("rank 1 step 20 ", times=3)
        assert "attempt 3 on node-1, node-2" in run.output
        run.assert_ended(0, "succeeded", within=300, attempt=3)


def test_a_short_cut_of_the_network_of_the_ranks_ends_nothing(lab3: Lab) -> None:
    """gloo waits, as TCP does."""
    with trial(lab3, with_gloo_on_the_data_network(lab3, max_restarts=3), GLOO, "200", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[2].cut("cluster")
        run.wait_for("node-2 does not reach node-0")
        lab3.hosts[2].heal("cluster")
        run.wait_for("node-2 reaches node-0 at")
        run.assert_ended(0, "succeeded", within=200)
    assert "attempt 2 on" not in run.output
