"""What a user may count on in vain when a host is lost. Pure."""

from __future__ import annotations

from ..inventory import recovery
from .plan import Plan


def warn_of_election(plan: Plan) -> tuple[str, ...]:
    """If `run.head_lost: elect` has no effect, because this run uses only some hosts of the inventory."""
    run, head = plan.inventory.run, plan.nodes[0].host.name
    if run.head_lost != "elect" or len(plan.nodes) == 1 or recovery.elects(plan.inventory, len(plan.nodes)):
        return ()
    needs = f"run.head_lost: elect needs {recovery.MIN_VOTERS} hosts, and this run has {len(plan.nodes)}"
    return (f"{needs}: if the head, {head}, is lost, the run waits for it",)


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
