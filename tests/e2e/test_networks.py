"""Hosts that share several networks: the fastest is found, used, and shown beside the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import COUNTER, assert_clean, counts, lines_of, ok, orch, script, start

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
    some = lab3.hosts[1:]  # with a head to which nothing was measured
    result = ok(orch(lab3, "up", inventory, "--hosts", ",".join(host.name for host in some), "--", script(lab3, SHOW)))
    assert result.stdout.count(f"network {some[0].cluster_address} ") == 2
    assert "ddp-orch check" not in result.stderr


def test_check_says_that_a_host_has_lost_the_network_that_it_chose(lab3: Lab) -> None:
    slow_down_the_ssh_network(lab3)
    inventory = lab3.inventory(run={"launcher": "direct"})
    ok(orch(lab3, "check", inventory))
    lab3.hosts[2].cut("cluster")
    for _ in range(2):
        found = json.loads(ok(orch(lab3, "check", inventory, "--json")).stdout)["findings"]
        (lost,) = [each for each in found if each["code"] == "nccl-wrong-nic"]
        assert (lost["hosts"], lost["severity"]) == (["node-2"], "warning") and "10.78.0.1" in lost["message"]
    lab3.hosts[2].heal("cluster")
    healed = json.loads(ok(orch(lab3, "check", inventory, "--json")).stdout)
    assert healed["network"]["addresses"]["node-0"] == "10.78.0.1"
    assert not [each for each in healed["findings"] if each["code"] == "nccl-wrong-nic"]


def test_a_slow_network_that_the_inventory_names_is_said_to_be_the_inventorys(lab2: Lab) -> None:
    slow_down_the_ssh_network(lab2)
    inventory = lab2.inventory(defaults={"user": "ann", "python": lab2.python, "interface": "eth0"})
    checked = ok(orch(lab2, "check", inventory)).stdout
    assert re.search(r"\(eth0, .*\bhead\b[^)]*\) .*\bslow\b", checked)
    assert re.search(r"\binterface for node-0\b", checked)


def test_without_a_measurement_up_says_that_check_can_tell(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, "print(1)")))
    assert re.search(r"\(eth0, eth1\).*`ddp-orch check\b", result.stderr)


REDUCE = """
import os, torch.distributed as dist, torch
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", int(value.item()), "at", os.environ["MASTER_ADDR"])
dist.barrier()
dist.destroy_process_group()
"""


NICS = {"node-0": "eth1", "node-1": "ens9"}


@contextmanager
def cluster_network_with_ipv6_only(lab: Lab) -> Iterator[None]:
    """Two global IPv6 addresses on every host, as with SLAAC and privacy extensions, and no IPv4 between hosts."""

    def ip(host: Host, verb: str, *addresses: str) -> None:
        for address in addresses:
            nodad = ["nodad"] if verb == "add" and ":" in address else []
            host.root_run(["ip", "address", verb, address, "dev", NICS[host.name], *nodad])

    for number, host in enumerate(lab.hosts, 1):
        ip(host, "del", f"{host.cluster_address}/16")
        ip(host, "add", f"fd78::{number}/64", f"fd78::{100 + number}/64")
        others = ", ".join(other.address for other in lab.hosts if other is not host)
        rules = f"chain in {{ type filter hook input priority 0; ip saddr {{ {others} }} drop; }}"
        host.root_run(["nft", "-f", "-"], input=f"table ip only_ipv6 {{\n{rules}\n}}\n")
    try:
        yield
    finally:
        for number, host in enumerate(lab.hosts, 1):
            host.root_run(["nft", "delete", "table", "ip", "only_ipv6"])
            ip(host, "del", f"fd78::{number}/64", f"fd78::{100 + number}/64")
            ip(host, "add", f"{host.cluster_address}/16")


@pytest.mark.parametrize(
    "run",
    [{"launcher": "direct"}, pytest.param({"rdzv": {"backend": "c10d"}}, marks=pytest.mark.full)],
    ids=["direct", "c10d"],
)
def test_hosts_that_share_ipv6_only_train_over_it(lab2: Lab, run: dict[str, Any]) -> None:
    with cluster_network_with_ipv6_only(lab2):
        inventory = lab2.inventory(run=run)
        result = ok(orch(lab2, "up", inventory, "--", script(lab2, REDUCE), timeout=60))
        assert result.stdout.count("sum 2 at fd78::") == 2
        assert_clean(lab2)


def test_the_links_of_a_running_run_listen_on_the_networks_that_the_hosts_share_alone(lab2: Lab) -> None:
    """On both, as one may fail; not on docker0, which has the same address on every host."""
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "1000", "0.05")
    wait_until(lambda: counts(lines_of(lab2, inventory, run_id)), 30, "the ranks run")
    for host in lab2.hosts:
        listening = host.sh("ss -Hltn | awk '{print $4}' | grep -v ':22$'").stdout.split()
        assert {one.rpartition(":")[0] for one in listening} == {host.address, host.cluster_address}, listening
    ok(orch(lab2, "kill", run_id, "-i", inventory, "--grace", "1"))
