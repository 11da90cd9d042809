"""What a user may count on in vain when a host is lost. Pure."""

from __future__ import annotations

from ..inventory import recovery
from .plan import Plan


def warn_of_election(plan: Plan) -> tuple[str, ...]:
    """If `run.head_lost: elect` has no effect yet, because this run uses only some hosts of the inventory."""
    is_wanted = plan.inventory.run.head_lost == "elect" and len(plan.nodes) > 1
    return (_describe_no_election(plan),) if is_wanted and not _elects(plan) else ()


def warn_of_fewer(before: Plan, after: Plan) -> tuple[str, ...]:
    """If hosts were left out without which the others cannot elect a head. A run on one host waits for nobody."""
    return (_describe_no_election(after),) if _elects(before) and not _elects(after) and len(after.nodes) > 1 else ()


def _elects(plan: Plan) -> bool:
    return recovery.elects(plan.inventory, len(plan.nodes))


def _describe_no_election(plan: Plan) -> str:
    head, count = plan.nodes[0].host.name, len(plan.nodes)
    message = (
        f"an election of another head needs {recovery.MIN_VOTERS} hosts, and this run has {count}: if the head, "
        f"{head}, is lost, the run waits for it"
    )
    if recovery.can_become_electing(plan.inventory, count):
        return f"{message}. Once you add another host (ddp-orch add), the hosts elect a head"
    return f"{message}. To elect one, start the run again when {recovery.MIN_VOTERS} hosts answer (ddp-orch restart)"


def note_snapshots(plan: Plan) -> tuple[str, ...]:
    """If the run may continue without its head, on which rank 0 has saved what the other hosts do not have."""
    run, head = plan.inventory.run, plan.nodes[0].host.name
    copies = run.resume in ("head", "newest") and not run.output and run.max_restarts
    workers = sum(not node.host.witness for node in plan.nodes)
    if not copies or plan.min_nodes >= workers or not recovery.elects(plan.inventory, len(plan.nodes)):
        return ()
    return (
        f"run.resume copies snapshots only between attempts: if {head} is lost, the run continues without those that "
        "it has saved since the last restart. A folder that all hosts share (run.output) keeps them (docs/resume.md)",
    )
