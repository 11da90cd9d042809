"""End a run before the job of a batch system that its hosts belong to. Pure."""

from __future__ import annotations

from dataclasses import replace

from .plan import Plan

MARGIN = 30.0
"""Seconds between the end of a run and that of its job: `up` has to requeue the job, and clocks differ."""


def end_with_job(plan: Plan, seconds_left: float | None) -> Plan:
    """The plan with a walltime that ends before its job. `seconds_left`: of the job; None: it has no limit."""
    run = plan.inventory.run
    if run.walltime is None or seconds_left is None:
        return plan
    walltime = max(1.0, seconds_left - MARGIN)
    if run.walltime != "auto":
        walltime = min(walltime, run.walltime)
    return replace(plan, inventory=replace(plan.inventory, run=replace(run, walltime=walltime)))
