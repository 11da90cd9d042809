"""`check`: print what would break a run on these hosts, and what ddp-orch chooses for the run."""

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
from ..inventory import run_ids, selection
from ..inventory.advice import complete_commands
from ..output import lines as logs
from ..output.console import fold, number_of, wants_colour
from ..output.finding import SEVERITIES, Finding, Severity
from ..output.terminal import tame
from ..plan import entrypoint
from ..plan.launchers import for_own_scripts
from ..plan.plan import Code, Plan, advise_shell_variables, resolve
from ..plan.plan import make as make_plan
from ..runs import bandwidths, deep, launch, mesh, probe, reach
from ..runs.mesh import Network
from ..ssh.config import by_hand
from .context import load_inventory, open_fleet, stderr_console

WRAP: dict[str, Any] = {  # options of textwrap.wrap
    "initial_indent": "  ",
    "subsequent_indent": "  ",
    "break_long_words": False,
    "break_on_hyphens": False,
}
Level = Literal["quick", "usual", "deep"]
COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[2m"}


def check(path: str | None, hosts: str | None, level: Level, as_json: bool) -> int:
    """Exit code: 0 without errors, 3 with errors, 4 if a host is unreachable."""
    console = stderr_console()
    inventory = load_inventory(path)
    if hosts is not None:
        inventory = selection.select(inventory, hosts)
    if inventory.run.script is None:
        inventory = for_own_scripts(inventory)
    command, snapshot = entrypoint.find(inventory, ())
    code = None if snapshot is None else Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), 0, 0)
    plan = make_plan(inventory, run_id="check", name="check", command=command, code=code, env={}, debug=False)
    for warning in (*advise_shell_variables(plan), *(snapshot.warnings if snapshot else ())):
        console.warning(warning)
    with open_fleet(inventory) as fleet:
        nodes = {node.host.name: node for node in plan.nodes}
        script_source = probe.script_of(snapshot)
        all_hosts = [node.host for node in plan.nodes]
        fleet.prepare(all_hosts)
        answers = fleet.each(
            all_hosts,
            lambda host, session: probe.ask(session, probe.question(plan, nodes[host.name], script_source)),
            "checking",
        )
        facts = {name: answer.facts for name, answer in answers.done.items()}
        findings = [*checks.report_failures(answers.failed), *probe.check_hosts(plan, answers.done)]
        findings += checks.report_other_keys(fleet.take_other_keys())
        facts = {name: fact for name, fact in facts.items() if name != plan.witness}  # the rest is about ranks
        network = _try_network(plan, facts, fleet, findings) if level != "quick" else None
        has_errors = any(finding.severity == "error" for finding in findings)
        result = None
        if level == "deep" and not has_errors:
            result = deep.run(inventory, run_ids.new_run_id(), fleet, _launch_context())
            findings += deep.check_result(result)
        elif level == "deep":
            console.note("skipped the real run of --deep; fix the errors first")
    choices = auto_env.choose(facts)
    findings = [
        replace(
            finding,
            fix=complete_commands(by_hand(finding.fix, all_hosts), inventory.path),
            evidence=tuple(by_hand(line, all_hosts) for line in finding.evidence),
        )
        for finding in findings
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if as_json:
        print(json.dumps(_as_dict(findings, choices, network, result), indent=2))
    else:
        text = _render(plan, findings, choices, network, facts, result)
        sys.stdout.write(tame(text, wants_colour(sys.stdout, os.environ)))
    if answers.failed:
        return combine(answers.failed.values(), "").exit_code
    return FindingsError.exit_code if any(finding.severity == "error" for finding in findings) else 0


def _try_network(plan: Plan, facts: Mapping[str, Facts], fleet: Fleet, findings: list[Finding]) -> Network | None:
    """Test the network between the hosts. None if there is only one host, or if the head has failed."""
    if len(facts) < 2 or plan.nodes[0].host.name not in facts:
        return None
    network = mesh.measure(plan, facts, fleet, secrets.token_hex(16))
    findings += reach.check_connections(plan, network, facts)
    hosts = {node.host.name: node.host for node in plan.nodes}
    bandwidths.remember(plan.nodes[0].host, {subnet.address: subnet.bandwidths for subnet in network.subnets}, hosts)
    return network


def _launch_context() -> launch.LaunchContext:
    """For the run of `--deep`: its hosts have been checked, and it needs no secrets."""
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
    findings: Iterable[Finding], choices: Iterable[AutoEnv], network: Network | None, result: deep.Result | None
) -> dict[str, Any]:
    return {
        "findings": [finding.as_dict() for finding in findings],
        "consequences": [],
        "choices": [vars(choice) for choice in choices],
        "network": mesh.as_dict(network) if network else None,
        "measured": [figure.as_dict() for figure in result.figures] if result else [],
    }


def _render(
    plan: Plan,
    findings: list[Finding],
    choices: tuple[AutoEnv, ...],
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
        parts.append("\n".join(_choices(plan, choices, network, facts)) + "\n")
    counts = [(sum(finding.severity == severity for finding in findings), severity) for severity in SEVERITIES]
    summary = ", ".join(number_of(count, severity) for count, severity in counts if count)
    hosts = number_of(len(plan.nodes) - (plan.witness is not None), "host")
    witness = f" and the witness {plan.witness}" if plan.witness else ""
    parts.append(f"{hosts}{witness}: {summary or 'no problems found'}\n")
    return "\n".join(parts)


def _finding(finding: Finding, severity: str, width: int) -> str:
    """Fixes and evidence are not wrapped, so that they can be copied."""
    lines = [f"{severity}  {fold(finding.hosts)}  [{finding.code}]"]
    lines += textwrap.wrap(finding.message, width, **WRAP)
    lines += [f"  {seen}" if seen.startswith("try: ") else f"  seen: {seen}" for seen in finding.evidence]
    fixes = finding.fix.splitlines()
    lines += [f"  {'fix: ' if not number else '     '} {line}" for number, line in enumerate(fixes)]
    return "\n".join(lines) + "\n"


def _choices(
    plan: Plan, choices: tuple[AutoEnv, ...], network: Network | None, facts: Mapping[str, Facts]
) -> list[str]:
    """What `up` would choose. The inventory can override each choice."""
    lines = ["chosen:"]
    if network is not None and network.head in network.addresses:
        lines.append(f"  address of the head       {network.addresses[network.head]}  ({network.head}, rank 0)")
        lines.append(f"  network                   {_describe_network(plan, network)}")
    port = plan.inventory.run.rdzv.port
    low, high = plan.inventory.run.ports
    lines.append(f"  rendezvous port           {f'a free port in {low}-{high}' if port == 'auto' else port}")
    nodes = (*plan.team, *plan.spares)
    if len(facts) == len(nodes):
        resolved = resolve(replace(plan, nodes=nodes), facts, {})
        threads = {
            node.host.name: max(1, facts[node.host.name].cores // max(1, int(node.nproc))) for node in resolved.nodes
        }
        values = ", ".join(str(count) for count in sorted(set(threads.values())))
        lines.append(f"  OMP_NUM_THREADS           {values}  (cores / ranks of a host)")
    lines.append("  RES_OPTIONS               timeout:1 attempts:1  (against slow name servers)")
    lines += [f"  {choice.variable:24}  {choice.value}  ({choice.why})" for choice in choices]
    return lines


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
    return f"{interfaces}, {rates[head_address]}  (also shared: {', '.join(others)})"
