"""Render a plan as text or JSON. Pure. What only hosts know is `auto`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from ..inventory.container import has_image
from ..inventory.launcher_rows import COMMAND
from ..output.console import number_of, size
from . import launchers
from .plan import Code, Plan, find_script_arguments, gets_code
from .run_program import without_program

MASK = "***"
MAX_NAMES = 4  # names of files that are not sent
AUTO_VALUES = {
    "master_addr": "auto",
    "master_port": "auto",
    "local_addr": "auto",
    "interface": "auto",
    "nccl_interface": "auto",
    "attempt": "1",
    "threads": "auto",
}
AUTO_PLACES = ("world_size", "job_id", "threads", "hosts", "addresses", "address_lines", "tf_config")


def as_text(plan: Plan) -> str:
    """The plan for people, with commands that can be pasted into a shell."""
    description = as_dict(plan)
    hosts = number_of(len(plan.nodes) - (plan.witness is not None), "host")
    lines = [f"run {plan.run_id}  {hosts}  launcher {plan.launcher.name}"]
    if (number := plan.inventory.any_of) is not None:
        lines.append(f"any {number} of these hosts; the node ranks follow from the choice")
    if plan.code is not None:
        code = plan.code
        lines.append(f"code {code.sha256[:12]}  {number_of(code.files, 'file')}, {size(code.size)}, from {code.root}")
        lines += [f"  {line}" for line in (credentials_left_out(code), excluded(code)) if line]
    for node in description["nodes"]:
        if node["witness"]:
            lines += ["", f"{node['host']}  witness, no ranks"]
            continue
        place = "spare" if node["node_rank"] is None else f"node rank {node['node_rank']}"
        ranks = f"{place}, {number_of(node['nproc_per_node'], 'rank')}"
        lines += ["", f"{node['host']}  {ranks}, gpus {_render_gpus(node['gpus'])}"]
        if node["sends"]:
            lines.append(f"  sends    {node['sends']}")
        if node["workdir"]:
            lines.append(f"  workdir  {node['workdir']}")
        lines += [f"  setup    {line}" for line in node["setup"]]
        if node["container"]:
            lines.append(f"  image    {node['container']}")
        lines += [
            f"  env      {name}={shlex.quote(value) if value != MASK else value}"
            for name, value in sorted(node["env"].items())
        ]
        if node["agent"]:
            lines.append(f"  agent    {shlex.join(node['agent'])} ...")
        what = "command" if plan.launcher.scope == "host" else "ranks  "
        lines.append(f"  {what}  {shlex.join(node['command'])}")
    return "\n".join(lines) + "\n"


def _render_gpus(gpus: Literal["auto"] | tuple[int, ...]) -> str:
    return gpus if isinstance(gpus, str) else ",".join(map(str, gpus)) or "none"


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: the command and environment of every host. Secrets are `***`."""
    return {
        "run_id": plan.run_id,
        "name": plan.name,
        "launcher": plan.launcher.name,
        "rendezvous": {"backend": plan.inventory.run.rdzv.backend, "port": plan.inventory.run.rdzv.port},
        "code": None if plan.code is None else asdict(plan.code),
        "any_of": plan.inventory.any_of,
        "nodes": [_node_as_dict(plan, number) for number in range(len(plan.nodes))],
    }


def _node_as_dict(plan: Plan, number: int) -> dict[str, Any]:
    node = plan.nodes[number]
    values = {
        **AUTO_VALUES,
        "nnodes": str(len(plan.team)),
        "node_rank": str(number) if node.host.in_team else "auto",
        "nproc": str(node.nproc),
        "rdzv_id": f"{plan.run_id}-1",
        "is_host": "1" if number == 0 else "0",
        "log_dir": "auto",
    }
    if plan.inventory.run.rdzv.port != "auto":
        values["master_port"] = str(plan.inventory.run.rdzv.port)
    head = plan.nodes[0].host
    if head.cluster_address:
        values["master_addr"] = head.cluster_address
    host = f"[{values['master_addr']}]" if ":" in values["master_addr"] else values["master_addr"]
    values["rdzv_endpoint"] = f"{host}:{values['master_port']}"
    if node.host.cluster_address:
        values["local_addr"] = node.host.cluster_address
    if node.host.interface != "auto":
        values["interface"] = values["nccl_interface"] = node.host.interface
    agent = [word.format_map(values) for word in plan.launcher.agent]
    command, launcher_env = list(node.command), {}
    if plan.launcher.scope == "host":
        words = node.command[1 + find_script_arguments(node.command[1:]) :]
        of_host = {"nproc_per_node": str(node.nproc), "host": node.host.name, "python": node.host.python}
        of_run = {**values, **of_host, "run": plan.name, **dict.fromkeys(AUTO_PLACES, "auto")}
        command = launchers.host_words(plan.launcher, words, of_run, first=number == 0)
        launcher_env = launchers.host_env(plan.launcher, of_run)
    elif (bare := without_program(node.command)) != node.command:
        command = list(bare)
    elif not plan.launcher.agent:
        command = [each for word in plan.launcher.argv for each in (command if word == COMMAND else (word,))]
    auto_env = {name: value.format_map(values) for name, value in node.auto_env.items()}
    return {
        "host": node.host.name,
        "address": node.host.address,
        "node_rank": number if node.host.in_team else None,
        "witness": node.host.witness,
        "nproc_per_node": node.nproc,
        "gpus": node.gpu_ids,
        "setup": list(node.host.setup),
        # torchrun starts the rank-exec shim, which becomes the command: torchrun never parses the command's own argv
        "agent": _agent(node.host.python, agent),
        "command": command,
        "env": {**auto_env, **launcher_env, **node.env, **dict.fromkeys(plan.secrets, MASK)},
        "container": node.host.container.image if has_image(node.host.container) else None,
        "workdir": node.host.workdir,
        "sends": f"code {plan.code.sha256[:12]}" if plan.code and gets_code(plan, node) else None,
    }


def _agent(python: str, agent: list[str]) -> list[str] | None:
    if tuple(agent) == launchers.OWN_AGENT:
        return agent
    return [python, *agent] if agent else None


def credentials_left_out(code: Code) -> str:
    """The note on files that are not sent because of their names, or an inventory with the address of a webhook."""
    return f"not sent (may contain secrets): {_some(code.credentials)}" if code.credentials else ""


def excluded(code: Code) -> str:
    """The note on files that .gitignore excludes; "" if there are none."""
    return f"not sent (excluded by .gitignore): {_some(code.excluded)}" if code.excluded else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
