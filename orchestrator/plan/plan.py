"""Turn an inventory into a plan: what is started where. No IO; what only hosts know stays `auto` until `resolve`."""

from __future__ import annotations

import hmac
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..answers.facts import Facts, Python
from ..answers.operation import Arguments
from ..errors import UsageError
from ..inventory.model import Host, Inventory
from . import launchers
from .launchers import Launcher

MAX_WORD = 128 * 1024 - 1
"""Bytes of one variable (`NAME=VALUE`) or argument: MAX_ARG_STRLEN of Linux, less the NUL at its end."""
MAX_WORDS = 1024 * 1024
"""Bytes of all of them. Linux takes a quarter of the stack's limit, 2 MiB as a rule, and the login brings its own."""
_PLACE = re.compile(r"(?<!\$)(?<!\$\{)(?:\{\{(run|host)\}\}|\{(run|host)\})")
"""What the user's arguments and variables may hold: `{{run}}` is a literal `{run}`, and `${run}` is OmegaConf's.

`{output}` is the same, and filled in on each host (node/run/launch.py).
"""
_SHELL_NAMES = {"DDP_ORCH_OUTPUT_DIR": "{output}", "DDP_ORCH_RUN_NAME": "{run}"}
_SHELL_VARIABLE = re.compile(r"\$(?:(DDP_ORCH_[A-Z_]+)|\{(DDP_ORCH_[A-Z_]+)\})")


@dataclass(frozen=True)
class Code:
    """The code that a run uses: a snapshot, sent by its content's hash."""

    sha256: str
    cwd: str
    """The folder inside it in which the command runs."""
    root: str
    files: int
    size: int
    """Bytes."""
    largest: tuple[tuple[str, int], ...] = ()
    """What takes the most bytes, by its name in `root`; folders with `/`."""
    excluded: tuple[str, ...] = ()
    """What .gitignore files keep back, from `cwd` on."""
    credentials: tuple[str, ...] = ()
    """Files that are left out because of their names, from `root` on."""


@dataclass(frozen=True)
class Node:
    """One node of a run. Its place in Plan.nodes is its node rank; spares come last, and have none."""

    host: Host
    nproc: Literal["auto"] | int
    gpu_ids: Literal["auto"] | tuple[int, ...]
    """`auto`: all there are, none hidden."""
    command: tuple[str, ...]
    """What every rank becomes."""
    env: Mapping[str, str]
    """The user's: run's, host's, command line's; later ones win."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """What the facts of all hosts ask for (checks/auto_env.py)."""

    @property
    def auto_env(self) -> dict[str, str]:
        """Ours, templates; the user's own values win over them."""
        visible = {} if self.gpu_ids == "auto" else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpu_ids))}
        ours = {**launchers.ENVIRONMENT, **self.chosen, **visible}
        return {name: value for name, value in ours.items() if name not in self.env}


@dataclass(frozen=True)
class Plan:
    run_id: str
    name: str
    nodes: tuple[Node, ...]
    launcher: Launcher
    code: Code | None
    """None: every host has a workdir, and nothing is sent."""
    inventory: Inventory
    secrets: tuple[str, ...]

    @property
    def team(self) -> tuple[Node, ...]:
        """The nodes of the first attempt: all but the spares."""
        return tuple(node for node in self.nodes if not node.host.spare)

    @property
    def min_nodes(self) -> int:
        """The number of nodes that a run needs to continue."""
        nnodes = self.inventory.run.nnodes
        return sum(not host.spare for host in self.inventory.hosts) if nnodes == "auto" else nnodes[0]

    @property
    def max_nodes(self) -> int:
        """The number of nodes that a run grows back to."""
        nnodes = self.inventory.run.nnodes
        return self.min_nodes if nnodes == "auto" else nnodes[1]


def order(inventory: Inventory) -> tuple[Host, ...]:
    """The hosts that take part, in the order of their node ranks: the head, the others as in the inventory, spares."""
    hosts = [host for host in inventory.hosts if not host.spare]
    hosts.sort(key=lambda host: host.name != inventory.head)  # stable
    nnodes = inventory.run.nnodes
    spares = [host for host in inventory.hosts if host.spare]
    return tuple((hosts if nnodes == "auto" else hosts[: nnodes[1]]) + spares)


def make(
    inventory: Inventory,
    *,
    run_id: str,
    name: str,
    command: tuple[str, ...],
    code: Code | None,
    env: Mapping[str, str],
    debug: bool,
) -> Plan:
    """`command`: what follows the python on every host, such as ("-u", "train.py", "--lr", "0.1").

    Raises UsageError where no process could be started so.
    """
    extra = {**(launchers.DEBUG_ENVIRONMENT if debug else {}), **inventory.run.env}
    nodes = tuple(
        Node(
            host=host,
            nproc=_nproc(host),
            gpu_ids=_gpu_ids(host),
            command=(host.python, *_fill_in_arguments(command, name, host.name)),
            env={key: _fill_in(value, name, host.name) for key, value in {**extra, **host.env, **env}.items()},
        )
        for host in order(inventory)
    )
    for node in nodes:
        check_size(node.env, node.command)
    launcher = launchers.choose(inventory.run.launcher, inventory.run.rdzv.backend)
    return Plan(run_id, name, nodes, launcher, code, inventory, inventory.run.secrets)


def arguments(command: Sequence[str]) -> int:
    """Where the script's own arguments begin in `-u SCRIPT ...` or `-u -m MODULE ...`."""
    return 3 if command[1] in ("-m", "-c") else 2


def _fill_in_arguments(command: tuple[str, ...], run: str, host: str) -> tuple[str, ...]:
    begin = arguments(command)
    return (*command[:begin], *(_fill_in(word, run, host) for word in command[begin:]))


def _fill_in(text: str, run: str, host: str) -> str:
    values = {"run": run, "host": host}
    return _PLACE.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], text)


def shell_variables(plan: Plan) -> tuple[str, ...]:
    """Of each argument or variable that names one of our variables as a shell would expand it: how to write it."""
    advice = {}
    for node in plan.nodes:
        words = {f"the argument {shlex.quote(word)}": word for word in node.command[arguments(node.command[1:]) + 1 :]}
        variables = {f"env {name}={shlex.quote(value)}": value for name, value in node.env.items()}
        for what, text in {**words, **variables}.items():
            right = _SHELL_VARIABLE.sub(lambda match: _SHELL_NAMES.get(match[1] or match[2], match[0]), text)
            if right != text:
                advice[what] = f"{what} is not expanded, because no shell reads it; write {shlex.quote(right)}"
    return tuple(advice.values())


def check_size(env: Mapping[str, str], command: Sequence[str] = ()) -> None:
    """Raises UsageError for what Linux hands to no process: it would be found out by the ranks only, on every host."""
    sizes = {
        f"the variable {name}": len(f"{name}={value}".encode(errors="surrogateescape")) for name, value in env.items()
    }
    sizes |= {
        f"argument {number} of the script": len(word.encode(errors="surrogateescape"))
        for number, word in enumerate(command[3:], 1)
    }
    for what, count in sizes.items():
        if count > MAX_WORD:
            raise UsageError(f"{what} is {count:,} bytes; the kernel limit is {MAX_WORD:,}. {_IN_A_FILE}")
    if sum(sizes.values()) > MAX_WORDS:
        largest = max(sizes, key=lambda what: sizes[what])
        raise UsageError(
            f"variables and arguments are {sum(sizes.values()):,} bytes in total, mostly {largest}. {_IN_A_FILE}"
        )


_IN_A_FILE = "Put the value in a file and pass its path"


def _gpu_ids(host: Host) -> Literal["auto"] | tuple[int, ...]:
    match host.gpus:
        case "auto":
            return "auto"
        case "none":
            return ()
        case int() as count:
            return tuple(range(count))
        case _:
            return host.gpus


def _nproc(host: Host) -> Literal["auto"] | int:
    if host.nproc_per_node != "auto":
        return host.nproc_per_node
    gpus = _gpu_ids(host)
    return "auto" if gpus == "auto" else max(1, len(gpus))


def resolve(plan: Plan, facts: Mapping[str, Facts], chosen: Mapping[str, str] | None = None) -> Plan:
    """Fill in what was `auto`, from the facts of every host; `chosen`: variables (checks/auto_env.py)."""
    nodes = (
        replace(
            node,
            nproc=max(1, len(facts[node.host.name].gpus)) if node.nproc == "auto" else node.nproc,
            chosen=chosen or {},
        )
        for node in plan.nodes
    )
    return replace(plan, nodes=tuple(nodes))


def world_size(plan: Plan) -> int:
    """The ranks of a resolved plan's first attempt."""
    return sum(node.nproc for node in plan.team if node.nproc != "auto")


def without(plan: Plan, names: Collection[str]) -> Plan | None:
    """The plan without these hosts, spares in their places; None if too few are left or the head is among them."""
    if plan.nodes[0].host.name in names:
        return None
    spares = [node for node in plan.nodes if node.host.spare and node.host.name not in names]
    team = []
    for node in plan.team:
        if node.host.name not in names:
            team.append(node)
        elif spares:
            spare = spares.pop(0)
            team.append(replace(spare, host=replace(spare.host, spare=False)))
    return replace(plan, nodes=(*team, *spares)) if len(team) >= plan.min_nodes else None


def spec(plan: Plan, number: int, facts: Mapping[str, Facts], *, created_at: str, by: str) -> Arguments:
    """What a node's guard needs, with the names of secrets only (orchestrator/node/run/guard.py reads it)."""
    node = plan.nodes[number]
    run = plan.inventory.run
    detected = [gpu.index for gpu in facts[node.host.name].gpus]
    python = facts[node.host.name].python
    torch = python.torch if isinstance(python, Python) else None
    return {
        "run_id": plan.run_id,
        "name": plan.name,
        "shared_output": f"{run.output.rstrip('/')}/{plan.name}" if run.output else None,
        "created_at": created_at,
        "by": by,
        "inventory": plan.inventory.path,
        "node": number,
        "host": node.host.name,
        "nodes": [
            {"host": one.host.name, "nproc": one.nproc, "spare": one.host.spare, "witness": False} for one in plan.nodes
        ],
        "python": node.host.python,
        "setup": list(node.host.setup),
        "workdir": node.host.workdir,
        "code": None if node.host.workdir or plan.code is None else {"sha256": plan.code.sha256, "cwd": plan.code.cwd},
        "command": list(node.command),
        "agent_argv": list(launchers.agent_argv(plan.launcher, torch)),
        "auto_env": node.auto_env,
        "env": dict(node.env),
        "secrets": list(plan.secrets),
        "nproc": node.nproc,
        "gpu_ids": detected if node.gpu_ids == "auto" else list(node.gpu_ids),
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
        "walltime": run.walltime,
        "snapshot_signal": run.snapshot_signal,
        "head_lost": "stop",
        "autostart": "none",
        "resume": "none",
        "stall_timeout": run.stall_timeout,
        "keep": {**run.keep.on_hosts(), "journal": run.keep.log_size},
    }


def private(plan: Plan, number: int, *, run_key: bytes, secrets: Mapping[str, str]) -> Arguments:
    """What a node's guard needs and keeps only in memory.

    `key`: the head has the run's own, any other node one that is good for its own link (orchestrator/node/run/link.py).
    `notify`: an address may be as good as a password, so only the head gets it and who may have to report its loss.
    """
    key = run_key if number == 0 else hmac.digest(run_key, number.to_bytes(4, "big"), "sha256")
    notify = plan.inventory.notify if _may_notify(plan, number) else None
    return {
        "secrets": dict(secrets),
        "key": key.hex(),
        "notify": {"webhook": notify.webhook, "command": notify.command} if notify else {},
    }


def _may_notify(plan: Plan, number: int) -> bool:
    """The head, and every node that may be the second of an attempt: it notifies when the head is lost."""
    fewer = max(0, len(plan.team) - plan.min_nodes)  # nodes before it that the run may go on without
    return plan.nodes[number].host.spare or number <= 1 + fewer
