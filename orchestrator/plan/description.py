"""Show a plan to people and programs before it is known what only hosts know. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Literal

from ..output.console import number_of, size
from .plan import Code, Plan

MASK = "***"
SHOWN = 4  # names of what is not sent
AUTO_PLACES = {
    "master_addr": "auto",
    "master_port": "auto",
    "local_addr": "auto",
    "interface": "auto",
    "nccl_interface": "auto",
    "attempt": "1",
    "threads": "auto",
}


def as_text(plan: Plan) -> str:
    """The plan as a person reads it, and could type it."""
    described = as_dict(plan)
    hosts = number_of(len(plan.nodes), "host")
    lines = [f"run {plan.run_id}  {hosts}  launcher {plan.launcher.name}"]
    if plan.code is not None:
        code = plan.code
        lines.append(f"code {code.sha256[:12]}  {number_of(code.files, 'file')}, {size(code.size)}, from {code.root}")
        lines += [f"  {line}" for line in (credentials_left_out(code), excluded(code)) if line]
    for node in described["nodes"]:
        place = "spare" if node["node_rank"] is None else f"node rank {node['node_rank']}"
        ranks = f"{place}, {number_of(node['nproc_per_node'], 'rank')}"
        lines += ["", f"{node['host']}  {ranks}, gpus {_shown(node['gpus'])}"]
        if node["sends"]:
            lines.append(f"  sends    {node['sends']}")
        if node["workdir"]:
            lines.append(f"  workdir  {node['workdir']}")
        lines += [f"  setup    {line}" for line in node["setup"]]
        lines += [
            f"  env      {name}={shlex.quote(value) if value != MASK else value}"
            for name, value in sorted(node["env"].items())
        ]
        if node["agent"]:
            lines.append(f"  agent    {shlex.join(node['agent'])} ...")
        lines.append(f"  ranks    {shlex.join(node['command'])}")
    return "\n".join(lines) + "\n"


def _shown(gpus: Literal["auto"] | tuple[int, ...]) -> str:
    return gpus if isinstance(gpus, str) else ",".join(map(str, gpus)) or "none"


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: every host's command and environment, secrets as `***`, what is not known yet as `auto`."""
    return {
        "run_id": plan.run_id,
        "name": plan.name,
        "launcher": plan.launcher.name,
        "rendezvous": {"backend": plan.inventory.run.rdzv.backend, "port": plan.inventory.run.rdzv.port},
        "code": None if plan.code is None else vars(plan.code),
        "nodes": [_node_as_dict(plan, number) for number in range(len(plan.nodes))],
    }


def _node_as_dict(plan: Plan, number: int) -> dict[str, Any]:
    node = plan.nodes[number]
    places = {
        **AUTO_PLACES,
        "nnodes": str(len(plan.team)),
        "node_rank": "auto" if node.host.spare else str(number),
        "nproc": str(node.nproc),
        "rdzv_id": f"{plan.run_id}-1",
        "is_host": "1" if number == 0 else "0",
        "log_dir": "auto",
    }
    if plan.inventory.run.rdzv.port != "auto":
        places["master_port"] = str(plan.inventory.run.rdzv.port)
    head = plan.nodes[0].host
    if head.cluster_address:
        places["master_addr"] = head.cluster_address
    host = f"[{places['master_addr']}]" if ":" in places["master_addr"] else places["master_addr"]
    places["rdzv_endpoint"] = f"{host}:{places['master_port']}"
    if node.host.cluster_address:
        places["local_addr"] = node.host.cluster_address
    if node.host.interface != "auto":
        places["interface"] = places["nccl_interface"] = node.host.interface
    agent = [word.format_map(places) for word in plan.launcher.agent]
    ours = {name: value.format_map(places) for name, value in node.auto_env.items()}
    return {
        "host": node.host.name,
        "address": node.host.address,
        "node_rank": None if node.host.spare else number,
        "nproc_per_node": node.nproc,
        "gpus": node.gpu_ids,
        "setup": list(node.host.setup),
        # torchrun starts our rank-exec shim, which becomes the command: its argv never passes through torchrun's parser
        "agent": [node.host.python, *agent] if agent else None,
        "command": list(node.command),
        "env": {**ours, **node.env, **dict.fromkeys(plan.secrets, MASK)},
        "workdir": node.host.workdir,
        "sends": None if node.host.workdir or plan.code is None else f"code {plan.code.sha256[:12]}",
    }


def credentials_left_out(code: Code) -> str:
    """Empty if there are none."""
    count = number_of(len(code.credentials), "credential")
    return f"{count} left out: {_some(code.credentials)}" if code.credentials else ""


def excluded(code: Code) -> str:
    """Empty if nothing is."""
    return f"not sent (excluded by .gitignore): {_some(code.excluded)}" if code.excluded else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
