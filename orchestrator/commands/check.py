"""`check`: print what would break a run on these hosts, and what ddp-orch chooses for the run."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
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
from ..inventory.model import Inventory
from ..output.console import wants_colour
from ..output.finding import SEVERITIES, Finding
from ..output.terminal import tame
from ..plan import entrypoint, losses
from ..plan.launchers import for_own_scripts
from ..plan.plan import Code, Plan, advise_shell_variables, describe_unused
from ..plan.plan import make as make_plan
from ..runs import bandwidths, deep, launch, mesh, probe, reach, registry
from ..runs.mesh import Network
from ..ssh.config import by_hand
from . import check_text
from .context import load_inventory, open_fleet, stderr_console, unset_secrets

Level = Literal["quick", "usual", "deep"]


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
    for note in (*describe_unused(plan), *losses.note_snapshots(plan), *(snapshot.notes if snapshot else ())):
        console.note(note)
    warnings = (*losses.warn_of_election(plan), *advise_shell_variables(plan))
    for warning in (*warnings, *(snapshot.warnings if snapshot else ())):
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
        findings += [*checks.report_other_keys(fleet.take_other_keys()), *_check_secrets(inventory)]
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
        colour = wants_colour(sys.stdout, os.environ)
        width = min(shutil.get_terminal_size((100, 24)).columns, check_text.MAX_WIDTH)
        failed = frozenset(answers.failed)
        report = check_text.Report(plan, findings, choices, network, facts, failed, result, hosts, level != "quick")
        sys.stdout.write(tame(check_text.render(report, width, colour=colour), colour))
    if answers.failed:
        return combine(answers.failed.values(), "").exit_code
    return FindingsError.exit_code if any(finding.severity == "error" for finding in findings) else 0


def _check_secrets(inventory: Inventory) -> list[Finding]:
    """The only finding about this machine, and not about a host."""
    unset = unset_secrets(inventory)
    if not unset:
        return []
    names = ", ".join(unset)
    fix = (
        f"export {' '.join(f'{name}=...' for name in unset)}; or remove from run.secrets what the script does not need"
    )
    message = f"run.secrets: not set in this environment: {names}. `up` refuses to start without"
    return [Finding("warning", "secret-not-set", (), message, fix, (f"try: printenv {' '.join(unset)}",))]


def _try_network(plan: Plan, facts: Mapping[str, Facts], fleet: Fleet, findings: list[Finding]) -> Network | None:
    """Test the network between the hosts that answer. None if they are fewer than two.

    If the head does not answer, the first host that does takes its part.
    """
    if len(facts) < 2:
        return None
    nodes = tuple(sorted(plan.nodes, key=lambda node: node.host.name not in facts))
    tested = replace(plan, nodes=nodes)
    network = mesh.measure(tested, facts, fleet, secrets.token_hex(16))
    findings += reach.check_connections(tested, network, facts)
    measured = {subnet.address: subnet.bandwidths for subnet in network.subnets}
    hosts = {node.host.name: node.host for node in plan.nodes}
    head, *others = (node.host for node in nodes)
    broken = reach.check_chosen(network, facts, bandwidths.chosen_before(head, others))
    findings += broken
    bandwidths.remember(head, measured, hosts, network.addresses if measured and not broken else {})
    return network


def _launch_context() -> launch.LaunchContext:
    """For the run of `--deep`: its hosts have been checked, and it needs no secrets."""
    return launch.LaunchContext(
        by=registry.CHECK,
        secrets={},
        run_key=secrets.token_bytes(32),
        skip_check=True,
        is_measurement=True,
        step=lambda _: None,
        warn=lambda _: None,
        command_without=lambda _: "",
        command_to_continue=lambda _: "",
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
