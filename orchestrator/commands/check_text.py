"""What `check` prints for people: hosts, network, choices, findings and the verdict, in this order. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..answers.facts import Facts, Python
from ..checks.auto_env import AutoEnv
from ..inventory import advice
from ..output.console import fold, number_of
from ..output.finding import SEVERITIES, Finding
from ..output.terminal import RESET
from ..plan.plan import Node, Plan, resolve, world_size
from ..runs import deep, mesh
from ..runs.bandwidths import AS_FAST
from ..runs.mesh import Network
from ..ui import host_table

MAX_WIDTH = 120
COLUMNS = ("GPUS", "TORCH", "NETWORK", "DRIVER", "PYTHON", "ADDRESS", "DISK FREE")  # the most important first
WRAP: dict[str, Any] = {  # options of textwrap.wrap
    "initial_indent": "  ",
    "subsequent_indent": "  ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[2m"}
MAX_ADDRESSES = 12  # hosts; of more, rows would not be equal
_LABEL = 28  # columns before a choice


@dataclass(frozen=True)
class Report:
    """What `check` knows at its end."""

    plan: Plan
    findings: Sequence[Finding]
    choices: tuple[AutoEnv, ...]
    network: Network | None
    facts: Mapping[str, Facts]
    unreachable: frozenset[str]
    result: deep.Result | None = None
    hosts: str | None = None
    """The pattern of --hosts."""
    tests_network: bool = True
    """False with --quick."""

    @property
    def resolved(self) -> Plan | None:
        """None if the facts of a host are missing."""
        nodes = (*self.plan.team, *self.plan.spares)
        if not all(node.host.name in self.facts for node in nodes):
            return None
        return resolve(replace(self.plan, nodes=nodes), self.facts, {})


def render(report: Report, width: int, *, colour: bool) -> str:
    """The findings and the verdict come last, because they have to stay on the screen."""
    rows = {node.host.name: _row(report, node) for node in report.plan.nodes}
    parts = ["\n".join(host_table.render(rows, COLUMNS, width, colour=colour)) + "\n"]
    if report.network is not None and report.network.pairs:
        parts.append(mesh.render(report.network, width))
    if untested := _untested(report):
        parts.append(untested + "\n")
    if report.result is not None and report.result.figures:
        parts.append(deep.render(report.result))
    if report.facts:
        parts.append("\n".join(_choices(report, width)) + "\n")
    for finding in reversed(report.findings):  # the worst last
        severity = finding.severity
        parts.append(_finding(finding, f"{COLOURS[severity]}{severity}{RESET}" if colour else severity, width))
    style, verdict, following = _verdict(report)
    verdict = "\n".join(textwrap.wrap(verdict, width, break_long_words=False, break_on_hyphens=False))
    parts.append(f"{host_table.STYLES[style]}{verdict}{RESET}\n" if colour else f"{verdict}\n")
    return "\n".join(parts) + f"{following}\n"


def _untested(report: Report) -> str:
    """The hosts without which the network was tested."""
    hosts = report.unreachable - {report.plan.witness}
    if not hosts or not report.tests_network or len(report.plan.nodes) < 2:
        return ""
    if report.network is not None:
        return f"The network was tested without {fold(hosts)}."
    return "The network was not tested: that needs two hosts that answer."


def _row(report: Report, node: Node) -> host_table.Row:
    name = node.host.name
    role = ", spare" if node.host.spare else ", witness" if node.host.witness else ""
    findings = [finding for finding in report.findings if name in finding.hosts]
    counts = Counter(finding.severity for finding in findings)
    answers = any(finding.code in ("remote-env-differs", "disk-full") for finding in findings)
    if name in report.unreachable and not answers:
        return host_table.Row({}, f"unreachable{role}", "error")
    worst = next((severity for severity in SEVERITIES[:2] if counts[severity]), None)
    state = "ok" if worst is None else number_of(counts[worst], worst)
    cells = _cells(report, node) if name in report.facts else {}
    return host_table.Row(cells, f"{state}{role}", worst or "ok")


def _cells(report: Report, node: Node) -> dict[str, str]:
    facts, name = report.facts[node.host.name], node.host.name
    models = Counter((gpu.name or "GPU").removeprefix("NVIDIA ") for gpu in facts.gpus)
    python = facts.python if isinstance(facts.python, Python) else None
    network = report.network
    configured = "" if node.host.interface == "auto" else node.host.interface
    interface = configured or (network.interfaces.get(name, "") if network else "")
    address = (network.addresses.get(name) if network else None) or node.host.cluster_address or ""
    disk = facts.disks.state
    return {
        "GPUS": ", ".join(f"{count}x {model}" for model, count in models.items()) or "none",
        "TORCH": (python.torch if python else None) or "-",
        "NETWORK": interface,
        "DRIVER": facts.nvidia.driver or "",
        "PYTHON": ".".join(map(str, python.python[:3])) if python else "-",
        "ADDRESS": address if len(report.plan.nodes) <= MAX_ADDRESSES else "",
        "DISK FREE": f"{_two_digits(disk.free / 1e9)} GB" if disk else "",
    }


def _two_digits(value: float) -> str:
    """Rounded down, so that equal hosts share a row."""
    if value < 10:
        return f"{int(value)}"
    digits = len(str(int(value))) - 2
    return str(int(value) // 10**digits * 10**digits)


def _verdict(report: Report) -> tuple[str, str, str]:
    """How to colour it, what it says, and the next command, on a line of its own so that it can be copied."""
    counts = Counter(finding.severity for finding in report.findings)
    path = report.plan.inventory.path
    options = ("--hosts", report.hosts) if report.hosts else ()
    found = [number_of(counts[severity], severity) for severity in SEVERITIES if counts[severity]]
    if counts["error"] or report.unreachable:
        guilty = {host for finding in report.findings if finding.severity == "error" for host in finding.hosts}
        again = advice.command("check", *options, inventory=path)
        verdict = ", ".join([f"{found[0]} on {fold(guilty | report.unreachable)}", *found[1:]])
        return "error", f"not ready: {verdict}", f"next: fix the errors above, then run: {again}"
    hosts = number_of(sum(not node.host.witness for node in report.plan.nodes), "host")
    witness = f" and the witness {report.plan.witness}" if report.plan.witness else ""
    ranks = f", {number_of(world_size(report.resolved), 'rank')}" if report.resolved else ""
    style = "warning" if counts["warning"] else "ok"
    script = () if report.plan.inventory.run.script else ("--", "SCRIPT")
    start = advice.command("up", *options, *script, inventory=path)
    return style, f"ready: {hosts}{witness}{ranks}, {', '.join(found) or 'no problems found'}", f"next: {start}"


def _finding(finding: Finding, severity: str, width: int) -> str:
    """Fixes and evidence are not wrapped, so that they can be copied."""
    lines = [f"{severity}  {fold(finding.hosts) or 'this machine'}  [{finding.code}]"]
    lines += textwrap.wrap(finding.message, width, **WRAP)
    lines += [f"  {seen}" if seen.startswith("try: ") else f"  seen: {seen}" for seen in finding.evidence]
    fixes = finding.fix.splitlines()
    lines += [f"  {'fix: ' if not number else '     '} {line}" for number, line in enumerate(fixes)]
    return "\n".join(lines) + "\n"


def _choices(report: Report, width: int) -> list[str]:
    """What `up` would choose. The inventory can override each choice; what all hosts override is left out."""
    plan, network, facts = report.plan, report.network, report.facts
    lines = ["chosen:"]
    if network is not None and network.head in network.addresses:
        if network.head == plan.nodes[0].host.name:
            lines.append(f"  address of the head       {network.addresses[network.head]}  ({network.head}, rank 0)")
        lines.append(f"  network                   {_describe_network(plan, network)}")
    port = plan.inventory.run.rdzv.port
    low, high = plan.inventory.run.ports
    lines.append(f"  rendezvous port           {f'a free port in {low}-{high}' if port == 'auto' else port}")
    if resolved := report.resolved:
        threads = {
            max(1, facts[node.host.name].cores // max(1, int(node.nproc)))
            for node in resolved.nodes
            if "OMP_NUM_THREADS" not in node.env
        }
        if threads:
            values = ", ".join(map(str, sorted(threads)))
            lines.append(f"  OMP_NUM_THREADS           {values}  (cores / ranks of a host)")
    dns = AutoEnv("RES_OPTIONS", "timeout:1 attempts:1", "against slow name servers")
    lines += [
        f"  {choice.variable:24}  {choice.value}  ({choice.why})"
        for choice in (dns, *report.choices)
        if not all(choice.variable in node.env for node in plan.nodes)
    ]
    indent = " " * _LABEL
    return [
        part for line in lines for part in textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True)
    ]


def _describe_network(plan: Plan, network: Network) -> str:
    """The interfaces (configured ones, else those found), and the speed of each network that the hosts share."""
    by_name: dict[str, list[str]] = {}
    configured = {node.host.name: node.host.interface for node in plan.nodes if node.host.interface != "auto"}
    for host, interface in {**network.interfaces, **configured}.items():
        by_name.setdefault(interface, []).append(host)
    same_name = len(by_name) == 1
    interfaces = "; ".join(name if same_name else f"{name} on {fold(hosts)}" for name, hosts in by_name.items())
    rates = {subnet.address: f"{subnet.bandwidth * 8 / 1e9:.2g} Gbit/s" for subnet in network.subnets}
    head_address = network.addresses[network.head]
    if head_address not in rates:
        return interfaces
    others = [
        f"{subnet.interface} {rates[subnet.address]}" for subnet in network.subnets if subnet.address != head_address
    ]
    return (
        f"{interfaces}, {rates[head_address]} to the head, from all hosts at once  (also shared: {', '.join(others)}; "
        f"{AS_FAST:.0%} of the best counts as equal)"
    )
