"""Check the network of each host: names, interfaces, ports, RDMA. Between hosts: runs/reach.py. Pure."""

from __future__ import annotations

import ipaddress
import posixpath
import shlex
from collections.abc import Mapping

from ..answers.facts import Facts, Python, RdmaPort
from ..answers.fields import is_address
from ..inventory.run_ids import RUN_ID
from ..output.mask import hide_credentials
from ..output.terminal import one_line
from ..plan.plan import Node, Plan
from .findings import Findings


def check_network(plan: Plan, nodes: list[Node], facts: Mapping[str, Facts], findings: Findings) -> None:
    for node in nodes:
        fact = facts[node.host.name]
        _names(node, fact, len(plan.nodes) > 1, findings)
        if len(plan.nodes) > 1:
            _interface(node, fact, findings)
            _patterns(node, fact, findings)
    head = plan.nodes[0].host.name
    if head in facts:
        _rendezvous_port(plan, facts[head], findings)
        _exposed(plan.nodes[0], facts[head], findings)
    if len(plan.nodes) > 1:
        _rdma(nodes, facts, head, findings)
        _plugins(nodes, facts, head, findings)
        _ipv6(nodes, facts, head, findings)


def _names(node: Node, fact: Facts, several: bool, findings: Findings) -> None:
    name, own = node.host.name, fact.hostname
    servers = ", ".join(fact.dns) or "none"
    slow = [what for what, answer in fact.names.items() if answer.seconds is None]
    if slow:
        message = (
            "name resolution takes more than a second; ddp-orch sets RES_OPTIONS='timeout:1 attempts:1' for the ranks"
        )
        fix = "fix the name servers in /etc/resolv.conf, or add all hosts to /etc/hosts"
        findings.add(
            "warning", "dns-slow", name, message, fix, f"getent hosts {slow[0]}: no answer; servers: {servers}"
        )
    answer = fact.names.get(own)
    if answer is None or answer.seconds is None:
        return
    evidence = f"getent hosts {own}: {answer.error or ', '.join(answer.found)}"
    fix = f"echo {shlex.quote(one_line(f'{_own_address(node, fact)} {own}'))} | sudo tee -a /etc/hosts"
    if answer.error:
        message = f"its own name, {own}, does not resolve there; ddp-orch does not need it, but other programs may"
        findings.add("warning", "hostname-unresolvable", name, message, fix, evidence)
    elif several and all(_loopback(address) for address in answer.found):
        message = (
            f"its own name, {own}, resolves to a loopback address; ddp-orch sets --local-addr and GLOO_SOCKET_IFNAME"
        )
        findings.add("note", "gloo-loopback-address", name, message, fix, evidence)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _own_address(node: Node, fact: Facts) -> str:
    usable = [each.address for each in fact.interfaces if each.up and not each.loopback and not each.bridge]
    return node.host.cluster_address or (usable[0] if usable else "ADDRESS")


def _interface(node: Node, fact: Facts, findings: Findings) -> None:
    """`interface` and `cluster_address` of the inventory."""
    name, interface = node.host.name, node.host.interface
    names = sorted({each.name for each in fact.interfaces if not each.loopback})
    if interface != "auto":
        named = [each for each in fact.interfaces if each.name == interface]
        if not any(each.up for each in named):
            what = "is down" if named else "does not exist or has no address"
            message = f"interface {interface} {what}; the host has {', '.join(names) or 'none'}"
            fix = (
                f"sudo ip link set {interface} up" if named else "set interface: auto, or the right name for this host"
            )
            findings.add("error", "gloo-ifname-no-match", name, message, fix, f"ip -br addr show dev {interface}")
    address = node.host.cluster_address
    if address and is_address(address) and address not in {each.address for each in fact.interfaces}:
        addresses = ", ".join(each.address for each in fact.interfaces if not each.loopback)
        code = "nccl-wrong-nic"
        message = f"cluster_address {address} is not an address of this host; it has {addresses}"
        fix = "correct cluster_address, or remove it, so that ddp-orch finds the address"
        findings.add("error", code, name, message, fix, "ip -br addr")


def _patterns(node: Node, fact: Facts, findings: Findings) -> None:
    """Variables of the user's that name an interface: ddp-orch does not change them."""
    names = sorted({each.name for each in fact.interfaces})
    settings = {**(fact.python.settings if isinstance(fact.python, Python) else {}), **node.env}
    checks = (
        ("NCCL_SOCKET_IFNAME", "nccl-ifname-no-match", nccl_matches),
        ("GLOO_SOCKET_IFNAME", "gloo-ifname-no-match", lambda pattern, names: [n for n in names if n == pattern]),
    )
    for variable, code, matches in checks:
        pattern = settings.get(variable)
        if pattern and variable in node.env and not matches(pattern, names):
            message = f"{variable}={pattern} matches no interface; the host has {', '.join(names)}"
            fix = f"remove {variable} from env; ddp-orch sets it on each host"
            findings.add("error", code, node.host.name, message, fix, f"ip -br addr: {', '.join(names)}")


def nccl_matches(pattern: str, names: list[str]) -> list[str]:
    """The interfaces that NCCL_SOCKET_IFNAME selects: by prefix; after `=`, by name; after `^`, all others."""
    prefixes = pattern.lstrip("^=").split(",")
    exact, exclude = pattern.startswith(("=", "^=")), pattern.startswith("^")
    hits = [name for name in names if any(name == prefix if exact else name.startswith(prefix) for prefix in prefixes)]
    return [name for name in names if name not in hits and name != "lo"] if exclude else hits


def _rendezvous_port(plan: Plan, fact: Facts, findings: Findings) -> None:
    head, port = plan.nodes[0].host.name, plan.inventory.run.rdzv.port
    if port == "auto":
        return
    if port < fact.first_port:
        message = f"rendezvous port {port} is reserved for root; other users can use ports from {fact.first_port}"
        fix = "leave run.rdzv.port out"
        evidence = f"sysctl net.ipv4.ip_unprivileged_port_start: {fact.first_port}"
        findings.add("error", "port-permission", head, message, fix, evidence)
    holder = fact.listeners.get(str(port))
    if holder is not None:
        holder_text = (
            f"pid {holder.pid} ({hide_credentials(holder.command or '')})"
            if holder.pid
            else "a process of another user"
        )
        message = f"rendezvous port {port} is in use by {holder_text}"
        run = RUN_ID.search(holder.command or "")
        stop = f"ddp-orch kill {run[0]}" if run else f"ssh {head} kill {holder.pid}"
        fix = "leave run.rdzv.port out: a free port is used" + (f"; or end the process: {stop}" if holder.pid else "")
        findings.add("error", "port-in-use", head, message, fix, f"ss -Hltnp 'sport = :{port}': {holder_text}")


def _exposed(node: Node, fact: Facts, findings: Findings) -> None:
    public = [each.address for each in fact.interfaces if each.up and ipaddress.ip_address(each.address).is_global]
    if public:
        message = (
            f"has a public address ({public[0]}); the store of rank 0 listens on all addresses and needs no password"
        )
        fix = "allow only the cluster's addresses in a firewall"
        findings.add("note", "store-exposed", node.host.name, message, fix, f"ip -br addr: {public[0]}")


def active_rdma(fact: Facts) -> list[RdmaPort]:
    return [port for port in fact.rdma if "ACTIVE" in port.state]


def _rdma(nodes: list[Node], facts: Mapping[str, Facts], head: str, findings: Findings) -> None:
    kinds = {
        node.host.name: ", ".join(sorted({port.layer for port in active_rdma(facts[node.host.name])})) or "none"
        for node in nodes
    }
    fix = "run ibstat there; check cable, switch port and driver; until then ddp-orch sets NCCL_IB_DISABLE=1"
    evidence = "cat /sys/class/infiniband/*/ports/*/state"
    findings.differ("warning", "nccl-transport-mixed", "active RDMA", kinds, head, fix, evidence)
    for node in nodes:
        for port in facts[node.host.name].rdma:
            if "ACTIVE" not in port.state and active_rdma(facts[node.host.name]):
                message = f"RDMA port {port.device}:{port.port} is {port.state or 'in an unknown state'}"
                findings.add(
                    "note",
                    "nccl-ib-link-fault",
                    node.host.name,
                    message,
                    "run ibstat there; check cable and switch port",
                    evidence,
                )


def _plugins(nodes: list[Node], facts: Mapping[str, Facts], head: str, findings: Findings) -> None:
    """NCCL's network plug-ins, such as aws-ofi-nccl, and libfabric, which the plug-in for EFA needs."""
    if any(node.env.get("NCCL_NET_PLUGIN") == "none" for node in nodes):
        return
    answers = {node.host.name: facts[node.host.name].python for node in nodes}
    pythons = {name: python for name, python in answers.items() if isinstance(python, Python)}
    plugins = {name: _library(python.net_plugin) for name, python in pythons.items()}
    fix = "install the same plug-in on all hosts, or set env: {NCCL_NET_PLUGIN: none}"
    evidence = "ls $LD_LIBRARY_PATH/libnccl-net*.so"
    findings.differ("error", "nccl-net-plugin-mismatch", "NCCL plug-in:", plugins, head, fix, evidence)
    fabrics = {name: _library(python.libfabric) for name, python in pythons.items() if python.net_plugin}
    fix = "use `setup` to put the same libfabric into the LD_LIBRARY_PATH of all hosts"
    findings.differ(
        "warning", "nccl-net-plugin-mismatch", "libfabric:", fabrics, head, fix, "ls $LD_LIBRARY_PATH/libfabric.so.*"
    )
    for name, python in pythons.items():
        fact = facts[name]
        if fact.gpus and not python.net_plugin and any(port.driver == "efa" for port in active_rdma(fact)):
            message = "has EFA, but no plug-in for NCCL to use it; NCCL would use TCP"
            fix = (
                "install aws-ofi-nccl; add setup: [export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib]"
            )
            findings.add("warning", "nccl-net-plugin-missing", name, message, fix, evidence)


def _library(path: str | None) -> str:
    return posixpath.basename(path) if path else "none"


def has_ipv6(fact: Facts) -> bool:
    return any(":" in each.address and each.up and not each.loopback for each in fact.interfaces)


def _ipv6(nodes: list[Node], facts: Mapping[str, Facts], head: str, findings: Findings) -> None:
    kinds = {node.host.name: "IPv6" if has_ipv6(facts[node.host.name]) else "no IPv6" for node in nodes}
    fix = "no action needed; ddp-orch sets NCCL_SOCKET_FAMILY=AF_INET"
    findings.differ("note", "ipv6-unusable", "addresses:", kinds, head, fix, "ip -br -6 addr show scope global")
