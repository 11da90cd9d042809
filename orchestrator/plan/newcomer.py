"""Plan a host that is added to a run: what its guard needs, made from the spec of the head. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..answers.add import Blueprint
from ..answers.facts import Facts
from ..answers.operation import Arguments
from ..errors import UsageError
from ..inventory.model import Host, Inventory
from . import launchers
from .node_spec import spec
from .plan import Code, Plan, make_node, resolve

# keys of a spec that each host has for itself
_OWN = {
    *("host", "python", "setup", "workdir", "code", "command", "container", "auto_env", "env"),
    *("nproc", "gpu_ids", "cluster_address", "interface"),
}


def make(inventory: Inventory, host: Host, run_id: str, blueprint: Blueprint) -> Plan:
    """The run with this host as its only node. Raises UsageError."""
    run = blueprint.spec
    if run.code is None and host.workdir is None:
        raise UsageError(f"{host.name} needs a `workdir`, because the head of run {run_id} has one instead of the code")
    code = None if run.code is None else Code(run.code.sha256, run.code.cwd, "", 0, 0)
    node = make_node(replace(host, spare=True), run.template, run.name)
    launcher = launchers.choose(inventory)
    return Plan(run_id, run.name, (node,), launcher, code, inventory, inventory.run.secrets, run.template)


def spec_of(
    plan: Plan, facts: Facts, blueprint: Blueprint, number: int, known: Sequence[tuple[str, int]], head: int
) -> Arguments:
    """What the guard needs. `plan`: of `make`. `known`: host and number of ranks of each node before this one.

    `head`: the number of the node that leads now.
    """
    name = plan.nodes[0].host.name
    shared = {key: value for key, value in blueprint.spec.auto_env.items() if key != "CUDA_VISIBLE_DEVICES"}
    own = spec(resolve(plan, {name: facts}, shared), 0, {name: facts}, created_at="", by="")
    first = {node.host: node for node in blueprint.spec.nodes if not node.added}
    nodes = [*known, (name, own["nproc"])]
    return {
        **{key: own[key] if key in _OWN else blueprint.raw.get(key, own[key]) for key in own},
        "node": number,
        "head": head,
        "nodes": [
            {
                "host": host,
                "nproc": nproc,
                "ranks": nproc,
                "spare": host not in first or first[host].spare,
                "witness": host in first and first[host].witness,
                "added": host not in first,
            }
            for host, nproc in nodes
        ],
    }
