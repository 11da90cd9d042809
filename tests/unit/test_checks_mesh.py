"""The network as it was tried becomes findings: the guilty host, and what opens its firewall."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from golden_files import assert_message
from host_facts import ETH0, decoded
from host_facts import facts as facts_of

from orchestrator.answers.facts import Facts, Lookup
from orchestrator.answers.network import Dialled, DialReport
from orchestrator.checks import auto_env
from orchestrator.checks.network import nccl_matches
from orchestrator.hosts.fleet import Results, combine
from orchestrator.hosts.session import Refused
from orchestrator.inventory import model
from orchestrator.output.finding import Finding
from orchestrator.plan import plan
from orchestrator.runs.mesh import Network, Pair, Subnet, _choose_address, _targets, render
from orchestrator.runs.reach import check_connections

NAMES = ("a", "b", "c", "d")
ADDRESSES = {name: f"10.0.0.{number}" for number, name in enumerate(NAMES, 1)}


def pair(source: str, target: str, **changed: Any) -> Pair:
    fine = Pair(source, target, ADDRESSES[target], (20001, None), ((40001, None), (40002, None)), 1e-4, False, 1e9)
    return replace(fine, **changed)


def facts(**changed: Any) -> Facts:
    return decoded(facts_of(**changed))


def dialled(address: str, why: str | None) -> Dialled:
    return Dialled("a", address, None, None, {"1": why}, None, False, None)


def network(change: dict[tuple[str, str], dict[str, Any]] | None = None, names: tuple[str, ...] = NAMES) -> Network:
    pairs = tuple(pair(*two, **(change or {}).get(two, {})) for two in permutations(names, 2))
    addresses = {name: ADDRESSES[name] for name in names}
    return Network("a", addresses, dict.fromkeys(names, "eth0"), ("10.0.0.1",), {}, pairs, {}, {})


def found(tried: Network, more: Sequence[dict[str, Any]] = (), **changed: Any) -> list[Finding]:
    """`more`: interfaces of each host."""
    names = [*tried.addresses, *tried.unreachable]
    read = model.parse(f"hosts: [{', '.join(sorted(names))}]", "inventory.yaml")
    made = plan.make(read, run_id="R", name="R", command=("-u", "train.py"), code=None, env={}, debug=False)
    known = {
        name: (facts(interfaces=[{**ETH0, "address": ADDRESSES[name]}, *more], **changed))
        for name in sorted(set(names))
    }
    return list(check_connections(made, tried, known))


def brief(findings: list[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.severity, one.code, one.hosts) for one in findings]


DROPPED: dict[str, Any] = {"random_ports": ((40001, "timed out"), (40002, "timed out"))}


def test_a_good_network_has_no_findings() -> None:
    assert found(network()) == []
    assert found(network(names=("a", "b"))) == []


def test_a_range_without_a_free_port_is_to_be_widened() -> None:
    full = replace(network(), failed={"a": Refused("port-in-use", "no free port in 24000-24001")})
    (finding,) = found(full)
    assert (finding.code, finding.hosts) == ("port-in-use", ("a",)) and "run.ports" in finding.fix
    assert combine(full.failed.values(), "").exit_code == 5


def test_who_lets_nobody_in_on_random_ports_is_named() -> None:
    (finding,) = found(network({(name, "c"): DROPPED for name in "abd"}))
    assert brief([finding]) == [("error", "ephemeral-ports-blocked", ("c",))]
    assert "10.0.0.1, 10.0.0.2, 10.0.0.4" in finding.fix and "32768-60999" in finding.fix
    (evidence,) = finding.evidence
    assert re.match(r"c: a .*10\.0\.0\.3:40001 \(c\): timed out\b.*\b2\b", evidence)


def test_who_gets_out_to_nobody_is_named_and_not_the_others() -> None:
    assert brief(found(network({("c", name): DROPPED for name in "abd"}))) == [
        ("error", "ephemeral-ports-blocked", ("c",))
    ]


def test_of_two_hosts_the_one_that_is_not_reached_is_named() -> None:
    assert brief(found(network({("a", "b"): DROPPED}, ("a", "b")))) == [("error", "ephemeral-ports-blocked", ("b",))]


def test_the_runs_ports_matter_on_the_head_and_are_a_note_elsewhere() -> None:
    closed = {"run_port": (20001, "Connection refused")}
    assert brief(found(network({(name, "a"): closed for name in "bcd"}))) == [("error", "rdzv-port-blocked", ("a",))]
    assert brief(found(network({(name, "b"): closed for name in "acd"}))) == [("note", "rdzv-port-blocked", ("b",))]


@pytest.mark.parametrize(
    "firewall, words",
    [
        ("ufw", "ufw allow"),
        ("firewalld", "firewall-cmd --reload"),
        ("iptables", "iptables -I INPUT"),
        ("nft ip filter INPUT", "filter INPUT"),
        ("nft-file inet filter input", "nft list ruleset"),
    ],
)
def test_the_fix_is_in_the_words_of_the_firewall_that_is_there(firewall: str, words: str) -> None:
    (finding,) = found(network({(name, "c"): DROPPED for name in "abd"}), firewalls=[firewall])
    assert words in finding.fix
    assert_message(f"fix-of-a-firewall/{firewall.split()[0]}", finding.fix)
    assert all(address in finding.fix for address in ("10.0.0.1", "10.0.0.2", "10.0.0.4"))


def test_a_chain_that_is_only_in_a_file_is_looked_for_first() -> None:
    (finding,) = found(network({(name, "c"): DROPPED for name in "abd"}), firewalls=["nft-file inet filter input"])
    look, condition, insert, *_ = finding.fix.splitlines()
    assert look.endswith("nft list ruleset") and "filter input" in insert
    assert re.search(r"\bIf\b.*inet filter input\b.*/etc/nftables\.conf", condition)


@pytest.mark.parametrize("firewalls", [[], ["nft x; reboot"], ["nft-file x; reboot"]])
def test_without_a_known_chain_the_fix_names_none(firewalls: list[str]) -> None:
    (finding,) = found(network({(name, "c"): DROPPED for name in "abd"}), firewalls=firewalls)
    assert "nft list ruleset" in finding.fix and "inet filter" not in finding.fix
    assert "tcp dport 32768-60999 accept" in finding.fix and "reboot" not in finding.fix


def test_a_head_that_nobody_reaches_is_guilty_and_a_single_host_that_does_not_reach_it_is() -> None:
    cut = {"10.0.0.1": "timed out"}
    alone = replace(network(names=("a",)), unreachable={"b": cut, "c": cut})
    assert brief(found(alone)) == [("error", "rdzv-port-blocked", ("a",))]
    one = replace(network(names=("a", "b")), unreachable={"c": cut})
    assert brief(found(one)) == [("error", "rdzv-port-blocked", ("c",))]


def test_where_only_one_host_does_not_reach_the_head_its_own_firewall_may_drop_the_answers() -> None:
    one = replace(network(names=("a", "b")), unreachable={"c": {"10.0.0.1": "timed out"}})
    (finding,) = found(one)
    assert "ssh c sudo" in finding.fix and "32768-60999" in finding.fix
    refused = replace(one, unreachable={"c": {"10.0.0.1": "Connection refused"}})
    two = replace(network(names=("a",)), unreachable={name: {"10.0.0.1": "timed out"} for name in "bc"})
    assert not any("32768-60999" in each.fix for tried in (refused, two) for each in found(tried))


def test_addresses_of_bridges_on_the_head_are_not_named_with_others() -> None:
    docker0 = {**ETH0, "name": "docker0", "address": "172.17.0.1", "bridge": True}
    tried = {"10.0.0.1": "timed out", "172.17.0.1": "timed out"}
    one = replace(network(names=("a", "b")), unreachable={"c": tried}, head_addresses=tuple(tried))
    (finding,) = found(one, more=[docker0])
    assert "10.0.0.1" in finding.message and "172.17" not in f"{finding.message} {finding.evidence}"


def test_a_host_without_a_route_is_no_matter_of_firewalls() -> None:
    cut = {"10.0.0.1": "no route: Network is unreachable"}
    one = replace(network(names=("a", "b")), unreachable={"c": cut})
    assert brief(found(one)) == [("error", "no-route", ("c",))]


def test_lost_large_packets_are_the_fault_of_the_host_on_all_those_paths() -> None:
    stalled = {"stalled": True, "bandwidth": None}
    both_ways = {(name, "b"): stalled for name in "acd"} | {("b", name): stalled for name in "acd"}
    assert brief(found(network(both_ways))) == [("error", "mtu-mismatch", ("b",))]
    assert brief(found(network({("a", "b"): stalled}, ("a", "b")))) == [("error", "mtu-mismatch", ("b",))]


def test_the_slow_host_is_named_by_its_best_path() -> None:
    slow = {"bandwidth": 1e6}
    change = {two: slow for two in permutations(NAMES, 2) if "d" in two}
    assert brief(found(network(change))) == [("warning", "network-slow", ("d",))]


def test_a_slow_host_is_told_which_network_was_measured() -> None:
    slow = network({two: {"bandwidth": 1e6} for two in permutations(("a", "b"))}, ("a", "b"))
    assert re.search(r"\(eth0\).* 8 Mbit/s", found(slow)[0].message)
    subnets = (Subnet("10.0.0.1", "eth0", {"b": 1e6}), Subnet("10.1.0.1", "eth1", {"b": 1e5}))
    (first,) = found(replace(slow, subnets=subnets))
    assert re.search(r"\(eth0\b.*\b2\b.*\)", first.message) and "ethtool eth0" in first.fix


def test_one_busy_path_makes_no_slow_host() -> None:
    assert found(network({("a", "b"): {"bandwidth": 1e6}})) == []


def test_names_of_others_that_are_unknown_are_a_note_and_silence_is_a_warning() -> None:
    unknown = {"b": Lookup((), "Name or service not known", 0.01)}
    assert brief(found(replace(network(), names={"a": unknown}))) == [("note", "hostname-unresolvable", ("a",))]
    silent = {"10.0.0.2": Lookup((), "no answer", None)}
    assert brief(found(replace(network(), names={"a": silent}))) == [("warning", "dns-slow", ("a",))]


def test_the_first_address_that_all_reach_is_taken_else_the_one_that_most_do() -> None:
    def answers(*reached: dict[str, str | None]) -> Results[DialReport]:
        return Results(
            {
                f"h{number}": DialReport(tuple(dialled(address, why) for address, why in one.items()), {})
                for number, one in enumerate(reached)
            },
            {},
        )

    assert _choose_address(["x", "y"], answers({"x": "no", "y": None}, {"x": None, "y": None})) == ("y", {})
    assert _choose_address(["x", "y"], answers({"x": None, "y": None}, {"x": None, "y": None})) == ("x", {})
    common, unreachable = _choose_address(
        ["x", "y"], answers({"x": None, "y": "no"}, {"x": None, "y": "no"}, {"x": "no", "y": None})
    )
    assert common == "x" and unreachable == {"h2": {"x": "no", "y": None}}


def test_few_hosts_try_all_others_and_many_some_in_a_way_that_joins_all() -> None:
    assert _targets(["a", "b", "c"], "b") == ["c", "a"]
    names = [f"n{number}" for number in range(100)]
    assert len(_targets(names, "n7")) == 7
    tried = {target for name in names for target in _targets(names, name)}
    assert tried == set(names)


def test_the_matrix_fits_80_columns_for_few_hosts() -> None:
    text = render(network({("a", "b"): {"latency": None}}))
    assert "blocked" in text
    assert max(map(len, text.splitlines())) <= 80


# --- choices


def test_nothing_is_chosen_where_nothing_asks_for_it() -> None:
    assert auto_env.choose({"a": facts(), "b": facts()}) == ()


def test_a_family_is_chosen_where_some_hosts_lack_ipv6() -> None:
    both = facts(interfaces=[ETH0, {**ETH0, "address": "fd00::1"}])
    assert [(one.variable, one.value) for one in auto_env.choose({"a": both, "b": facts()})] == [
        ("NCCL_SOCKET_FAMILY", "AF_INET")
    ]
    assert auto_env.choose({"a": both, "b": both}) == ()


def test_rdma_that_only_some_have_is_left_alone_by_all() -> None:
    port = {"device": "mlx5_0", "port": "1", "state": "ACTIVE", "layer": "InfiniBand", "driver": ""}
    assert [one.variable for one in auto_env.choose({"a": facts(rdma=[port]), "b": facts()})] == ["NCCL_IB_DISABLE"]
    assert auto_env.choose({"a": facts(rdma=[port]), "b": facts(rdma=[port])}) == ()


def test_a_users_own_value_wins_over_a_chosen_one() -> None:
    read = model.parse("hosts: [a, b]\nrun: {env: {NCCL_IB_DISABLE: '0'}}", "inventory.yaml")
    made = plan.make(read, run_id="R", name="R", command=("-u", "t.py"), code=None, env={}, debug=False)
    chosen = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_FAMILY": "AF_INET"}
    node = plan.resolve(made, {"a": facts(), "b": facts()}, chosen).nodes[0]
    assert "NCCL_IB_DISABLE" not in node.auto_env and node.env["NCCL_IB_DISABLE"] == "0"
    assert node.auto_env["NCCL_SOCKET_FAMILY"] == "AF_INET"


@pytest.mark.parametrize(
    "pattern, matched",
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth", []),
        ("=eth1", ["eth1"]),
        ("^docker", ["eth0", "eth1"]),
        ("ib,eth1", ["eth1"]),
    ],
)
def test_patterns_of_interfaces_are_read_as_nccl_does(pattern: str, matched: list[str]) -> None:
    assert nccl_matches(pattern, ["docker0", "eth0", "eth1", "lo"]) == matched
