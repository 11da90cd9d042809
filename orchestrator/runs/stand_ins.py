"""Take hosts that a run would not use, because run.nnodes allows no more, in place of those that are unreachable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..errors import OrchError, UnreachableError
from ..hosts.fleet import Fleet, Results
from ..output.console import fold
from ..plan import plan as planning
from ..plan.plan import Node, Plan
from ..plan.snapshot import Snapshot
from . import examination
from . import probe as preflight
from .probe import Probed
from .timing import Timing


def take(
    plan: Plan,
    probed: Results[Probed],
    snapshot: Snapshot | None,
    fleet: Fleet,
    timing: Timing,
    step: Callable[[str], None],
    *,
    skip_check: bool,
) -> tuple[Plan, Results[Probed]]:
    """The plan with the hosts that stand in, and the answers with theirs. Those that are unreachable stay in both.

    Nothing can replace the head, and spares come first. A host stands in only if the checks find no error on it.
    """
    away = set(probed.failed)
    missing = count_missing(plan, probed.failed)
    known = dict(probed.done)
    team = list(plan.team)
    candidates = [planning.make_node(host, plan.template, plan.name) for host in planning.unused(plan)]
    # what all hosts have has not been sent to a host without a workdir
    candidates = [node for node in candidates if plan.code is not None or node.host.workdir]
    while missing > 0 and candidates:
        asked, candidates = candidates[:missing], candidates[missing:]
        answers = examination.examine(plan, snapshot, fleet, timing, asked).done
        able = [node for node in asked if node.host.name in answers]
        able = [node for node in able if skip_check or not _has_error(plan, node, answers[node.host.name])]
        known.update({node.host.name: answers[node.host.name] for node in able})
        team += able
        missing -= len(able)
    if taken := [node.host.name for node in team[len(plan.team) :]]:
        step(f"in place of {fold(away & {node.host.name for node in plan.team})}: {fold(taken)}")
    rest = plan.nodes[len(plan.team) :]
    return replace(plan, nodes=(*team, *rest)), Results(known, probed.failed, probed.late)


def count_missing(plan: Plan, away: Mapping[str, OrchError]) -> int:
    """How many hosts the team lacks, after spares have replaced what they can. 0 if no start is possible anyway."""
    is_hopeless = not all(isinstance(error, UnreachableError) for error in away.values())
    if is_hopeless or plan.nodes[0].host.name in away:
        return 0
    gone = sum(node.host.name in away for node in plan.team)
    return max(0, gone - sum(node.host.name not in away for node in plan.spares))


def _has_error(plan: Plan, node: Node, probed: Probed) -> bool:
    findings = preflight.check_hosts(replace(plan, nodes=(node,)), {node.host.name: probed})
    return any(finding.severity == "error" for finding in findings)
