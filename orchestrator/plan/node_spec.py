"""What the node program of each host gets of a plan: its spec, which is kept, and what only memory holds. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ..answers.facts import Facts, Python
from ..answers.operation import Arguments
from ..inventory import container
from ..inventory.model import Notify
from ..inventory.recovery import can_become_electing, elects
from . import launchers
from .plan import Code, Node, Plan, gets_code, processes

AUTO_PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
"""The optimizers of torch import torch._dynamo when they are made, which takes half as long as torch."""


def spec(plan: Plan, number: int, facts: Mapping[str, Facts], *, created_at: str, by: str) -> Arguments:
    """What a node's guard needs (orchestrator/node/guard/guard.py). Of secrets it has only the names."""
    node, run = plan.nodes[number], plan.inventory.run
    fact = facts[node.host.name]
    torch = fact.python.torch if isinstance(fact.python, Python) else None
    return {
        "run_id": plan.run_id,
        "name": plan.name,
        "shared_output": f"{run.output.rstrip('/')}/{plan.name}" if run.output else None,
        "created_at": created_at,
        "by": by,
        "inventory": plan.inventory.path,
        "node": number,
        "host": node.host.name,
        "nodes": [_node_of_spec(plan, each) for each in plan.nodes],
        "python": node.host.python,
        "setup": list(node.host.setup),
        "workdir": node.host.workdir,
        "code": _code_of_spec(plan.code) if plan.code and gets_code(plan, node) else None,
        "command": list(node.command),
        "launcher": plan.launcher.as_spec(),
        "container": container.as_spec(node.host.container, fact.container),
        "template": asdict(plan.template),
        "agent_argv": list(launchers.agent_argv(plan.launcher, torch)),
        "preload": list(_preload(plan, torch))
        if not container.has_image(node.host.container) and not node.host.witness
        else [],
        "preload_script": run.preload == "auto",
        "warm": run.warm,
        "auto_env": {} if node.host.witness else node.auto_env,
        "env": dict(node.env),
        "secrets": list(plan.secrets),
        "nproc": processes(plan, node),
        "gpu_ids": [gpu.index for gpu in fact.gpus] if node.gpu_ids == "auto" else list(node.gpu_ids),
        "cluster_address": node.host.cluster_address,
        "interface": node.host.interface,
        "ports": list(run.ports),
        "rdzv_port": run.rdzv.port,
        "grace": run.grace,
        "max_restarts": run.max_restarts,
        "min_nodes": plan.min_nodes,
        "max_nodes": plan.max_nodes,
        "lease": run.lease,
        "rejoin_timeout": run.rejoin_timeout if run.max_restarts else 0.0,
        "walltime": None if run.walltime == "auto" else run.walltime,
        "tie": plan.tie,
        "snapshot_signal": run.snapshot_signal,
        "rank_0_on_head": run.rdzv.backend == "static",
        "head_lost": "elect" if _is_electing(plan) else "stop",
        "autostart": run.autostart,
        "resume": run.resume,
        "resume_limit": run.resume_limit,
        "resume_timeout": run.resume_timeout,
        "memory_limit": run.memory_limit,
        "stall_timeout": run.stall_timeout,
        "keep": {**run.keep.on_hosts(), "journal": run.keep.log_size},
        "versions": fact.versions,
    }


def _node_of_spec(plan: Plan, node: Node) -> Arguments:
    ranks = {"nproc": processes(plan, node), "ranks": node.nproc}
    place = {"spare": node.host.spare, "witness": node.host.witness, "source": node.host.name == plan.source}
    return {"host": node.host.name, **ranks, **place}


def _is_electing(plan: Plan) -> bool:
    """Whether the nodes elect another head, if only after a host is added."""
    staying = len(plan.nodes) - (plan.source is not None)
    return elects(plan.inventory, staying) or can_become_electing(plan.inventory, staying)


def _preload(plan: Plan, torch: str | None) -> tuple[str, ...]:
    """The modules that a host imports once for all its ranks. `torch`: its version there; None: there is none.

    A script without torch would wait for the import for nothing.
    """
    preload = plan.inventory.run.preload
    if preload == "auto":
        uses_torch = torch is not None and (plan.code is None or plan.code.names_torch)
        return AUTO_PRELOAD if uses_torch and plan.launcher.can_preload else ()
    return () if preload == "none" else preload


def private(plan: Plan, number: int, *, run_key: bytes, secrets: Mapping[str, str]) -> Arguments:
    """What a node's guard needs and keeps only in memory.

    `key`: the run's, for the links between the nodes (orchestrator/node/link/link.py). `notify`: the URL of a webhook
    may be a secret, so only the nodes that may have to notify get it. `elects`: all may, as any may become the head.
    A witness never does, and has no ranks that need the secrets.
    """
    is_witness = plan.nodes[number].host.witness
    is_electing = _is_electing(plan)
    may_notify = not is_witness and (is_electing or _may_notify(plan, number))
    notify = plan.inventory.notify if may_notify else None
    return {
        "secrets": {} if is_witness else dict(secrets),
        "key": run_key.hex(),
        "notify": _notify(notify) if notify else {},
        "elects": is_electing,
    }


def _notify(notify: Notify) -> Arguments:
    targets = {"webhook": notify.webhook, "mail": notify.mail, "command": notify.command}
    return {**targets, "events": list(notify.events)}


def _may_notify(plan: Plan, number: int) -> bool:
    """Whether the node may be the first or second of an attempt: the head notifies, or the second if it is lost."""
    spare_nodes = max(0, len(plan.team) - plan.min_nodes)  # that many nodes before this one may be lost
    return plan.nodes[number].host.spare or number <= 1 + spare_nodes


def _code_of_spec(code: Code) -> dict[str, object]:
    """The hosts use `sha256` and `cwd`; people want to know the commit, and how many files differed from it."""
    found = {"commit": code.commit.id, "changed": code.commit.changed} if code.commit else {}
    return {"sha256": code.sha256, "cwd": code.cwd, **found}
