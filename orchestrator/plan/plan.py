"""Turn an inventory into a plan: what to start where. No IO. What only hosts know stays `auto` until `resolve`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..answers.add import Template
from ..answers.facts import Facts
from ..errors import UsageError
from ..inventory import container
from ..inventory.model import Host, Inventory
from ..inventory.recovery import elects
from ..inventory.selection import select
from ..output.console import fold, number_of
from ..output.mask import SHORTEST_SECRET, named_credentials, names_credential
from . import launchers
from .commit import Commit
from .launchers import Launcher

MAX_WORD = 128 * 1024 - 1
"""Bytes of one variable (`NAME=VALUE`) or argument: Linux's MAX_ARG_STRLEN without the NUL at the end."""
MAX_WORDS = 1024 * 1024
"""Bytes of all variables and arguments. Linux allows a quarter of the stack limit, usually 2 MiB, and the login shell's
own variables count too."""
_PLACEHOLDER = re.compile(r"(?<!\$)(?<!\$\{)(?:\{\{(run|host)\}\}|\{(run|host)\})")
"""Placeholders in the user's arguments and variables. `{{run}}` stands for a literal `{run}`; `${run}` is left to
OmegaConf. Each host fills in `{output}` by itself (node/ranks/launch.py).
"""
EVER = 36_500  # of run.keep: runs, and days
_FILE_ADVICE = "Put the value in a file and pass its path"
_SHELL_NAMES = {"DDP_ORCH_OUTPUT_DIR": "{output}", "DDP_ORCH_RUN_NAME": "{run}"}
_SPECIAL_TOKEN = re.compile(r"<.*>|\[.*\]")  # of a tokenizer: --pad-token "<|endoftext|>"
_SHELL_VARIABLE = re.compile(r"\$(?:(DDP_ORCH_[A-Z_]+)|\{(DDP_ORCH_[A-Z_]+)\})")
_OF_RANK = re.compile(r"\$\{?((?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))\}?")


@dataclass(frozen=True)
class Code:
    """The snapshot of the user's code that a run uses."""

    sha256: str
    """The hash of its content. Hosts keep it under this name."""
    cwd: str
    """The folder inside the snapshot in which the command runs."""
    root: str
    """The folder on this machine that was taken."""
    files: int
    """How many."""
    size: int
    """Bytes of all files."""
    largest: tuple[tuple[str, int], ...] = ()
    """The files and folders in `root` with the most bytes, largest first; folders end with `/`."""
    excluded: tuple[str, ...] = ()
    """Paths that .gitignore files exclude, relative to `cwd`."""
    credentials: tuple[str, ...] = ()
    """Paths left out because they have names of credentials, relative to `root`."""
    names_torch: bool = False
    """Whether a Python file in it has the word torch."""
    commit: Commit | None = None
    """What is checked out in `root`; None: it is not the top of a git repository."""


@dataclass(frozen=True)
class Node:
    """A node of a run. Its index in Plan.nodes is its node rank in the first attempt; spares, at the end, get none."""

    host: Host
    nproc: Literal["auto"] | int
    gpu_ids: Literal["auto"] | tuple[int, ...]
    """`auto`: all GPUs of the host; CUDA_VISIBLE_DEVICES is not set."""
    command: tuple[str, ...]
    """The command of every rank, with the python of the host."""
    env: Mapping[str, str]
    """The user's variables: those of `run` in the inventory, overridden by those of the host, then by `up -e`."""
    facts_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that follow from the facts of all hosts (checks/auto_env.py)."""

    @property
    def auto_env(self) -> dict[str, str]:
        """The variables that ddp-orch sets, as templates. The user's values win."""
        gpus = {} if self.gpu_ids == "auto" else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpu_ids))}
        variables = {**launchers.ENVIRONMENT, **self.facts_env, **gpus}
        return {name: value for name, value in variables.items() if name not in self.env}


@dataclass(frozen=True)
class Plan:
    """What to start on which host, for one run."""

    run_id: str
    name: str
    nodes: tuple[Node, ...]
    """The head first, then the others, the spares and the witness."""
    launcher: Launcher
    code: Code | None
    """None: every host has a workdir, so nothing is sent."""
    inventory: Inventory
    secrets: tuple[str, ...]
    """Names of the variables whose values are secret."""
    template: Template
    """From which the command and the variables of each node were made."""
    tie: float | None = None  # s without a request from `up` until the run is stopped; None: it does not need `up`
    source: str | None = None
    """A host without ranks, which gives the others what rank 0 of an earlier run saved there, and leaves then."""

    @property
    def team(self) -> tuple[Node, ...]:
        """The nodes of the first attempt: all but the spares and the witness."""
        return tuple(node for node in self.nodes if node.host.in_team)

    @property
    def spares(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.host.spare and node.host.name != self.source)

    @property
    def witness(self) -> str | None:
        """The name of the host that only votes."""
        return next((node.host.name for node in self.nodes if node.host.witness), None)

    @property
    def min_nodes(self) -> int:
        """The fewest nodes with which the run may start or continue."""
        nnodes = self.inventory.run.nnodes
        return sum(host.in_team for host in self.inventory.hosts) if nnodes == "auto" else nnodes[0]

    @property
    def max_nodes(self) -> int:
        """The number of nodes that a run grows back to."""
        nnodes = self.inventory.run.nnodes
        return self.min_nodes if nnodes == "auto" else nnodes[1]


def order(inventory: Inventory) -> tuple[Host, ...]:
    """The hosts that take part: the head, the others as in the inventory, the spares, and the witness of elections."""
    hosts = [host for host in inventory.hosts if host.in_team]
    hosts.sort(key=lambda host: host.name != inventory.head)  # stable
    nnodes = inventory.run.nnodes
    spares = [host for host in inventory.hosts if host.spare]
    taken = (hosts if nnodes == "auto" else hosts[: nnodes[1]]) + spares
    witness = inventory.run.witness
    return (*taken, witness) if witness is not None and elects(inventory, len(taken) + 1) else tuple(taken)


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
    """`command`: the arguments of python on every host, such as ("-u", "train.py", "--lr", "0.1").

    Raises UsageError if the arguments or variables are too large for any process.
    """
    run_env = {**(launchers.DEBUG_ENVIRONMENT if debug else {}), **inventory.run.env}
    template = Template(command, run_env, env)
    nodes = tuple(make_node(host, template, name) for host in order(inventory))
    launcher = launchers.with_server(launchers.choose(inventory), command)
    return Plan(run_id, name, nodes, launcher, code, inventory, inventory.run.secrets, template)


def restrict(plan: Plan, names: Collection[str], *, any_of: int | None = None) -> Plan:
    """The plan on only these of its hosts, or `any_of` of them."""
    inventory = replace(select(plan.inventory, ",".join(names)), any_of=any_of)
    nodes = tuple(make_node(host, plan.template, plan.name) for host in order(inventory))
    return replace(plan, inventory=inventory, nodes=nodes)


def make_node(host: Host, template: Template, run: str) -> Node:
    """The node of a host, in the run of that name. Raises as `make`."""
    env = (
        {}
        if host.witness
        else {
            **template.run_env,
            **container.variables(host.container),
            **host.env,
            **template.up_env,
        }
    )
    node = Node(
        host=host,
        nproc=ranks_of(host),
        gpu_ids=_gpu_ids(host),
        command=(host.python, *_fill_in_arguments(template.command, run, host.name)),
        env={key: _fill_in(value, run, host.name) for key, value in env.items()},
    )
    check_size(node.env, node.command)
    return node


def find_script_arguments(command: Sequence[str]) -> int:
    """The index of the script's first argument in `-u SCRIPT ...` or `-u -m MODULE ...`."""
    return 3 if command[1] in ("-m", "-c") else 2


def _fill_in_arguments(command: tuple[str, ...], run: str, host: str) -> tuple[str, ...]:
    begin = find_script_arguments(command)
    return (*command[:begin], *(_fill_in(word, run, host) for word in command[begin:]))


def _fill_in(text: str, run: str, host: str) -> str:
    values = {"run": run, "host": host}
    return _PLACEHOLDER.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], text)


def unused(plan: Plan) -> tuple[Host, ...]:
    """The hosts of the inventory that are no spares, and that run.nnodes leaves out."""
    used = {node.host.name for node in plan.nodes}
    return tuple(host for host in plan.inventory.hosts if host.in_team and host.name not in used)


def describe_unused(plan: Plan) -> tuple[str, ...]:
    """A note if the inventory has more hosts than the run may use."""
    left = fold(host.name for host in unused(plan))
    why = f"run.nnodes allows {number_of(plan.max_nodes, 'host')} besides spares"
    return (f"{left}: not used by this run unless another host is off, because {why}",) if left else ()


def advise_shell_variables(plan: Plan) -> tuple[str, ...]:
    """A warning for each argument or variable in which `$DDP_ORCH_...`, `$RANK` and such would need a shell."""
    warnings = {}
    for node in plan.nodes:
        first = 1 + find_script_arguments(node.command[1:])
        words = {f"the argument {shlex.quote(word)}": word for word in node.command[first:]}
        variables = {f"env {name}={shlex.quote(value)}": value for name, value in node.env.items()}
        for what, text in {**words, **variables}.items():
            correct = _SHELL_VARIABLE.sub(lambda match: _SHELL_NAMES.get(match[1] or match[2], match[0]), text)
            if correct != text:
                warnings[what] = f"{what} is not expanded, because no shell reads it; write {shlex.quote(correct)}"
            elif name := _OF_RANK.fullmatch(text):
                read = f'read os.environ["{name[1]}"] in the script'
                warnings[what] = f"{what} is not expanded, because no shell reads it; {read}"
    return tuple(warnings.values())


def advise_secrets(plan: Plan) -> tuple[str, ...]:
    """Warnings about variables and arguments that look like credentials, and are not in run.secrets."""
    variables = sorted(
        {name for node in plan.nodes for name, value in node.env.items() if value and names_credential(name)}
    )
    options = sorted(
        {
            name
            for node in plan.nodes
            for name, value in named_credentials(node.command)
            if len(value) >= SHORTEST_SECRET and not _SPECIAL_TOKEN.fullmatch(value)
        }
    )
    warnings = []
    if variables:
        theirs = "its value is" if len(variables) == 1 else "their values are"
        warnings.append(
            f"{', '.join(variables)}: {theirs} stored in clear text in the records of the run, here and on its hosts. "
            f"For credentials, use `run.secrets: [{', '.join(variables)}]`, and set them in your environment"
        )
    if options:
        warnings.append(
            f"the argument {', '.join(options)}: all users of a host can read it in its list of processes, and it is "
            "stored in clear text in the records of the run. Pass credentials as variables: name them in `run.secrets`"
        )
    return tuple(warnings)


def check_size(env: Mapping[str, str], command: Sequence[str] = ()) -> None:
    """Raises UsageError for variables and arguments that are too large for Linux. Later, every rank would fail."""
    sizes = {
        f"the variable {name}": len(f"{name}={value}".encode(errors="surrogateescape")) for name, value in env.items()
    }
    sizes |= {
        f"argument {number} of the script": len(word.encode(errors="surrogateescape"))
        for number, word in enumerate(command[3:], 1)
    }
    for what, count in sizes.items():
        if count > MAX_WORD:
            raise UsageError(f"{what} is {count:,} bytes; the kernel limit is {MAX_WORD:,}. {_FILE_ADVICE}")
    if sum(sizes.values()) > MAX_WORDS:
        largest = max(sizes, key=lambda what: sizes[what])
        raise UsageError(
            f"variables and arguments are {sum(sizes.values()):,} bytes in total, mostly {largest}. {_FILE_ADVICE}"
        )


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


def ranks_of(host: Host) -> Literal["auto"] | int:
    """The number of ranks of a host, as far as the inventory says."""
    if host.witness:
        return 0
    if host.nproc_per_node != "auto":
        return host.nproc_per_node
    gpus = _gpu_ids(host)
    return "auto" if gpus == "auto" else max(1, len(gpus))


def resolve(plan: Plan, facts: Mapping[str, Facts], facts_env: Mapping[str, str] | None = None) -> Plan:
    """Replace `auto` by what the facts of every host tell. `facts_env`: variables of checks/auto_env.py."""
    nodes = (
        replace(
            node,
            nproc=max(1, len(facts[node.host.name].gpus)) if node.nproc == "auto" else node.nproc,
            facts_env=facts_env or {},
        )
        for node in plan.nodes
    )
    return replace(plan, nodes=tuple(nodes))


def keep_all(plan: Plan) -> Plan:
    """The plan of a run whose start deletes nothing from its hosts."""
    keep = replace(plan.inventory.run.keep, runs=EVER, days=EVER, outputs="all")
    return replace(plan, inventory=replace(plan.inventory, run=replace(plan.inventory.run, keep=keep)))


def check_ranks(plan: Plan) -> None:
    """Raises UsageError if the launcher cannot be right with the numbers of ranks of a resolved plan."""
    ranks = {node.host.name: int(node.nproc) for node in (*plan.team, *plan.spares)}
    launchers.check_even(plan.launcher, ranks, (plan.min_nodes, plan.max_nodes), len(plan.spares))


def processes(plan: Plan, node: Node) -> int:
    """How many processes ddp-orch starts on a node of a resolved plan. Each has output of its own, by its number."""
    return 1 if plan.launcher.scope == "host" and not node.host.witness else int(node.nproc)


def gets_code(plan: Plan, node: Node) -> bool:
    """Whether the code is sent to a node."""
    return plan.code is not None and node.host.workdir is None and not node.host.witness


def world_size(plan: Plan) -> int:
    """The number of ranks in the first attempt of a resolved plan."""
    return sum(node.nproc for node in plan.team if node.nproc != "auto")


def with_source(plan: Plan, host: Host) -> Plan:
    """The plan with a host as its `source`, which is none of its hosts."""
    node = make_node(replace(host, spare=True), plan.template, plan.name)
    others = [other for other in plan.nodes if not other.host.witness]
    return replace(plan, nodes=(*others, node, *plan.nodes[len(others) :]), source=host.name)


def without(plan: Plan, names: Collection[str]) -> Plan | None:
    """The plan without these hosts; spares replace them. None if too few are left, or the head is one of them.

    Without its witness, a run that could elect a head must still be able to.
    """
    if plan.nodes[0].host.name in names:
        return None
    spares = [node for node in plan.spares if node.host.name not in names]
    team = []
    for node in plan.team:
        if node.host.name not in names:
            team.append(node)
        elif spares:
            spare = spares.pop(0)
            team.append(replace(spare, host=replace(spare.host, spare=False)))
    if len(team) < plan.min_nodes:
        return None
    if plan.witness in names:
        return replace(plan, nodes=(*team, *spares)) if elects(plan.inventory, len(team) + len(spares)) else None
    witness = [node for node in plan.nodes if node.host.witness and elects(plan.inventory, len(team) + len(spares) + 1)]
    return replace(plan, nodes=(*team, *spares, *witness))
