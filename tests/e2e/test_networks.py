"""Hosts that share several networks: the fastest is found, used, and shown beside the others."""

from __future__ import annotations

import json

from lab.lab import Lab

from .driver import ok, orch, script

SHOW = "import os; print('network', os.environ['MASTER_ADDR'], os.environ['GLOO_SOCKET_IFNAME'])"


def slow_down_the_ssh_network(lab: Lab) -> None:
    for host in lab.hosts:
        host.rate("50mbit", "ssh")


def test_check_finds_the_fastest_network_and_up_uses_it(lab3: Lab) -> None:
    slow_down_the_ssh_network(lab3)
    inventory = lab3.inventory(run={"launcher": "direct"})
    checked = ok(orch(lab3, "check", inventory))
    assert "network-slow" not in checked.stdout
    head = lab3.hosts[0]
    network = json.loads(ok(orch(lab3, "check", inventory, "--json")).stdout)["network"]
    assert network["addresses"][head.name] == head.cluster_address
    rates = {subnet["head_address"]: subnet["bandwidth_bytes_per_s"] for subnet in network["subnets"]}
    assert rates[head.cluster_address] > 5 * rates[head.address] > 0
    assert [subnet["head_address"] for subnet in network["subnets"] if subnet["chosen"]] == [head.cluster_address]
    result = ok(orch(lab3, "up", inventory, "--", script(lab3, SHOW)))
    assert f"network {head.cluster_address} eth1" in result.stdout
    assert f"network {head.cluster_address} ens9" in result.stdout


def test_a_slow_network_that_the_inventory_names_is_said_to_be_the_inventorys(lab2: Lab) -> None:
    slow_down_the_ssh_network(lab2)
    inventory = lab2.inventory(defaults={"user": "ann", "python": lab2.python, "interface": "eth0"})
    checked = ok(orch(lab2, "check", inventory)).stdout
    assert "eth0, by the head's interface) is slow" in checked
    assert "remove interface for node-0" in checked


def test_without_a_measurement_up_says_that_check_can_tell(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, "print(1)")))
    assert "several networks (eth0, eth1)" in result.stderr
