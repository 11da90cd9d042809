"""`check`: what would break a run on these hosts, before it starts; and what is chosen for it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from ..answers.facts import Facts
from ..checks import auto_env
from ..checks import hosts as checks
from ..checks.auto_env import AutoEnv
from ..errors import FindingsError
from ..hosts.fleet import Fleet, combine
from ..inventory import model, run_ids
from ..inventory.advice import complete_commands
from ..output import lines as logs
from ..output.console import fold, number_of, wants_colour
from ..output.finding import SEVERITIES, Finding, Severity
from ..output.terminal import tame
from ..plan import entrypoint, plan
from ..plan.plan import Plan
from ..runs import bandwidths, deep, launch, mesh, probe, reach
from ..runs.mesh import Network
from ..ssh.config import by_hand
from .context import load_inventory, open_fleet, stderr_console

WRAP: dict[str, Any] = {  # options of textwrap.wrap, which are of several types
    "initial_indent": "  ",
    "subsequent_indent": "  ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
Level = Literal["quick", "usual", "deep"]
COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[2m"}


def check(given: str | None, hosts: str | None, level: Level, as_json: bool) -> int:
    """Exit code: 0 clean or warnings only, 3 with errors, 4 where a host was not reached."""
    console = stderr_console()
    read = load_inventory(given)
    if hosts is not None:
        read = model.select(read, hosts)
    command, snapshot = entrypoint.find(read, ())
    code = None if snapshot is None else plan.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), 0, 0)
    made = plan.make(read, run_id="check", name="check", command=command, code=code, env={}, debug=False)
    for warning in (*plan.advise_shell_variables(made), *(snapshot.warnings if snapshot else ())):
        console.warning(warning)
    with open_fleet(read) as fleet:
        nodes = {node.host.name: node for node in made.nodes}
        asked = probe.script_of(snapshot)
        everyone = [node.host for node in made.nodes]
        fleet.prepare(everyone)
        probed = fleet.each(
            everyone,
            lambda host, session: probe.ask(session, probe.question(made, nodes[host.name], asked)),
            "checking",
        )
        facts = {name: one.facts for name, one in probed.done.items()}
        findings = [*checks.unreached(probed.failed), *probe.judge(made, probed.done)]
        findings += checks.other_keys(fleet.take_other_keys())
        network = _try_network(made, facts, fleet, findings) if level != "quick" else None
        broken = any(finding.severity == "error" for finding in findings)
        result = None
        if level == "deep" and not broken:
            result = deep.run(read, run_ids.new_run_id(), fleet, _launch_context())
            findings += deep.judge(result)
        elif level == "deep":
            console.note("skipped the real run of --deep; fix the errors first")
    chosen = auto_env.choose(facts)
    findings = [
        replace(
            finding,
            fix=complete_commands(by_hand(finding.fix, everyone), read.path),
            evidence=tuple(by_hand(line, everyone) for line in finding.evidence),
        )
        for finding in findings
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if as_json:
        print(json.dumps(_as_dict(findings, chosen, network, result), indent=2))
    else:
        text = _render(made, findings, chosen, network, facts, result)
        sys.stdout.write(tame(text, wants_colour(sys.stdout, os.environ)))
    if probed.failed:
        return combine(probed.failed.values(), "").exit_code
    return FindingsError.exit_code if any(finding.severity == "error" for finding in findings) else 0


def _try_network(made: Plan, facts: Mapping[str, Facts], fleet: Fleet, findings: list[Finding]) -> Network | None:
    """None where there is nothing to try: one host, or no head."""
    if len(facts) < 2 or made.nodes[0].host.name not in facts:
        return None
    network = mesh.explore(made, facts, fleet, secrets.token_hex(16))
    findings += reach.judge(made, network, facts)
    hosts = {node.host.name: node.host for node in made.nodes}
    bandwidths.remember(made.nodes[0].host, {subnet.address: subnet.bandwidths for subnet in network.subnets}, hosts)
    return network


def _launch_context() -> launch.LaunchContext:
    """Of the run of `--deep`: its facts were judged already, and no secret goes with it."""
    return launch.LaunchContext(
        created_at=logs.rfc3339(time.time()),
        by="check --deep",
        secrets={},
        run_key=secrets.token_bytes(32),
        skip_check=True,
        step=lambda _: None,
        warn=lambda _: None,
        command_without=lambda _: "",
    )


def _as_dict(
    findings: Iterable[Finding], chosen: Iterable[AutoEnv], network: Network | None, result: deep.Result | None
) -> dict[str, Any]:
    return {
        "findings": [finding.as_dict() for finding in findings],
        "consequences": [],
        "choices": [vars(choice) for choice in chosen],
        "network": mesh.as_dict(network) if network else None,
        "measured": [one.as_dict() for one in result.figures] if result else [],
    }


def _render(
    made: Plan,
    findings: list[Finding],
    chosen: tuple[AutoEnv, ...],
    network: Network | None,
    facts: Mapping[str, Facts],
    result: deep.Result | None,
) -> str:
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    colour = wants_colour(sys.stdout, os.environ)

    def style(severity: Severity) -> str:
        return f"{COLOURS[severity]}{severity}\x1b[0m" if colour else severity

    parts = [_finding(finding, style(finding.severity), width) for finding in findings]
    if network is not None and network.pairs:
        parts.append(mesh.render(network))
    if result is not None and result.figures:
        parts.append(deep.render(result))
    if facts:
        parts.append("\n".join(_chosen(made, chosen, network, facts)) + "\n")
    counts = [(sum(finding.severity == severity for finding in findings), severity) for severity in SEVERITIES]
    told = ", ".join(number_of(count, severity) for count, severity in counts if count)
    parts.append(f"{number_of(len(made.nodes), 'host')}: {told or 'no problems found'}\n")
    return "\n".join(parts)


def _finding(finding: Finding, severity: str, width: int) -> str:
    """Fixes and evidence are never wrapped: they are there to be copied."""
    lines = [f"{severity}  {fold(finding.hosts)}  [{finding.code}]"]
    lines += textwrap.wrap(finding.message, width, **WRAP)
    lines += [f"  {seen}" if seen.startswith("try: ") else f"  seen: {seen}" for seen in finding.evidence]
    fixes = finding.fix.splitlines()
    lines += [f"  {'fix: ' if not number else '     '} {line}" for number, line in enumerate(fixes)]
    return "\n".join(lines) + "\n"


def _chosen(made: Plan, chosen: tuple[AutoEnv, ...], network: Network | None, facts: Mapping[str, Facts]) -> list[str]:
    """What `up` would choose by itself, each overridable in the inventory."""
    lines = ["chosen:"]
    if network is not None and network.head in network.addresses:
        lines.append(f"  address of the head       {network.addresses[network.head]}  ({network.head}, rank 0)")
        lines.append(f"  network                   {_network(made, network)}")
    port = made.inventory.run.rdzv.port
    low, high = made.inventory.run.ports
    lines.append(f"  rendezvous port           {f'a free port in {low}-{high}' if port == 'auto' else port}")
    resolved = plan.resolve(made, facts, {}) if len(facts) == len(made.nodes) else None
    if resolved is not None:
        threads = {
            node.host.name: max(1, facts[node.host.name].cores // max(1, int(node.nproc))) for node in resolved.nodes
        }
        told = ", ".join(str(count) for count in sorted(set(threads.values())))
        lines.append(f"  OMP_NUM_THREADS           {told}  (cores / ranks of a host)")
    lines.append("  RES_OPTIONS               timeout:1 attempts:1  (against slow name servers)")
    lines += [f"  {choice.variable:24}  {choice.value}  ({choice.why})" for choice in chosen]
    return lines


def _network(made: Plan, network: Network) -> str:
    """The interfaces, of the inventory where it names one, and the speed of each network that the hosts share."""
    by_name: dict[str, list[str]] = {}
    named = {node.host.name: node.host.interface for node in made.nodes if node.host.interface != "auto"}
    for host, interface in {**network.interfaces, **named}.items():
        by_name.setdefault(interface, []).append(host)
    one_name = len(by_name) == 1
    shown = "; ".join(name if one_name else f"{name} on {fold(hosts)}" for name, hosts in by_name.items())
    rates = {subnet.address: f"{subnet.bandwidth * 8 / 1e9:.2g} Gbit/s" for subnet in network.subnets}
    taken = network.addresses[network.head]
    if taken not in rates:
        return shown
    others = [f"{subnet.interface} {rates[subnet.address]}" for subnet in network.subnets if subnet.address != taken]
    return f"{shown}, {rates[taken]}  (also shared: {', '.join(others)})"
