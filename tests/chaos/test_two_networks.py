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


def with_gloo_on_the_data_network(lab: Lab, *, spares: int = 0, **run: object) -> Path:
    """The link and the rendezvous are on the other one. `spares`: so many hosts, the last ones."""
    hosts: list[dict[str, object]] = [
        {"name": host.name, "address": host.address, "env": {"GLOO_SOCKET_IFNAME": host.links["cluster"].interface}}
        for host in lab.hosts
    ]
    for host in hosts[len(hosts) - spares :]:
        host["spare"] = True
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
    assert "node-2 to be" in news[0]["text"] and "revive" not in news[0]["text"]
    diagnosed = ok(orch(lab3, "diagnose", run.run_id, "-i", inventory)).stdout
    assert re.search(r"host-lost, node-2\b", diagnosed) and "10.78.0.1" in diagnosed


def test_a_cut_of_the_network_of_the_ranks_at_the_head_names_the_head(lab3: Lab) -> None:
    with trial(lab3, with_gloo_on_the_data_network(lab3), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[0].cut("cluster")
        run.assert_ended(4, "lost", "node-0: host lost", within=120)


def test_a_head_whose_network_of_the_ranks_is_cut_gives_up_the_lead(lab3: Lab) -> None:
    with trial(lab3, with_gloo_on_the_data_network(lab3, max_restarts=3, nnodes="2:3"), GLOO, "400", "0.05") as run:
        run.wait_for("rank 2 step 20 ")
        lab3.hosts[0].cut("cluster")
        run.wait_for("rank 1 step 20 ", times=2)
        assert {node["host"]: node["role"] for node in run.fact()["nodes"]}["node-0"] == "spare"
        lab3.hosts[0].heal("cluster")
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    assert re.search(r"first failure: node-0: .* at 10\.78\.0\.1\b", run.output)


def test_spares_tell_that_it_is_the_head_which_is_cut_off(lab4: Lab) -> None:
    """The only other host with ranks cannot."""
    inventory = with_gloo_on_the_data_network(lab4, spares=2, max_restarts=5, nnodes="2:3", lease=4)
    with trial(lab4, inventory, GLOO, "400", "0.05") as run:
        run.wait_for("rank 1 step 20 ")
        lab4.hosts[0].cut("cluster")
        run.wait_for("node-0 is reached by no other host at 10.78.0.1")
        assert run.fact()["suspects"] == ["node-0"]
        run.wait_for("rank 2 step 20 ")
        assert {node["host"] for node in run.fact()["nodes"] if node["role"] == "spare"} == {"node-0"}
        lab4.hosts[0].heal("cluster")
        run.assert_ended(0, "succeeded", within=200, attempt=2)
    assert re.search(r"first failure: node-0: .* at 10\.78\.0\.1\b", run.output)
    diagnosed = ok(orch(lab4, "diagnose", run.run_id, "-i", inventory)).stdout
    assert re.search(r"host-lost, node-0\b", diagnosed) and not re.search(r"host-lost, node-[123]\b", diagnosed)


def test_the_host_is_named_if_spares_reach_the_head_and_a_spare_that_is_cut_off_is_not_used(lab4: Lab) -> None:
    inventory = with_gloo_on_the_data_network(lab4, spares=2, max_restarts=5, nnodes=2)
    with trial(lab4, inventory, GLOO, "400", "0.05") as run:
        run.wait_for("rank 1 step 20 ")
        lab4.hosts[2].cut("cluster")
        lab4.hosts[1].cut("cluster")
        run.wait_for("node-1 does not reach node-0")
        run.wait_for("node-2: it does not reach 10.78.0.1")
        run.wait_for("rank 1 step 20 ", times=2)
        assert {node["host"] for node in run.fact()["nodes"] if node["role"] == "spare"} == {"node-1", "node-2"}
        for host in lab4.hosts[1:3]:
            host.heal("cluster")
        run.assert_ended(0, "succeeded", within=200, attempt=2)


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
