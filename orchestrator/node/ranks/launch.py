"""The jobs of an attempt on this node: argv and environment of each process, and the interface that it uses.

The spec holds the launcher as data (plan/launchers.py makes it): argv and environment with `{name}` places for
what is known only when an attempt begins. The user's own values are never part of a template; in script arguments
and in variables only `{output}` is filled in.
"""

import hashlib
import hmac
import os
import re
import string
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from ..gang import gang_events
from ..host import memory_folder, network, processes
from . import placeholders
from .host_variables import HOST_VARIABLES

# Ask no name server; /etc/hosts is read. torchrun is given addresses only, but it looks up its own name and the names
# of all peers, one after the other: with a server that does not answer, each takes a second.
AGENT_RESOLVER = "attempts:0"

# the variables of a rank of `direct` whose values an attempt brings
OF_RANK = (
    *("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_ERROR_FILE", "DDP_ORCH_ATTEMPT"),
)

NO_MARK = "DDP_ORCH_NO_RUN"  # see preload/later_runs.py

OOM_SCORE = 300  # of ranks: when memory runs out, the kernel should kill one of them first

MPIRUN = "mpirun"  # the launcher, and the verb of its agent
MPI_KEY = "DDP_ORCH_MPI_KEY"  # the variable with the key of the connections between its agents

READY = "DDP_ORCH_READY"  # the variable with the URL that answers once a server is ready (plan/run_program.py)

SCRIPT = 2  # index of the script, -m or -c in a command: python, -u, SCRIPT
SHIM_WORDS = 4  # python -u -c PROGRAM, before the words of a command that is started once per host

# `{{output}}` is a literal `{output}`, and `${output}` is OmegaConf's (as in plan.py)
OUTPUT = re.compile(r"(?<!\$)(?<!\$\{)(\{\{output\}\}|\{output\})")


class Paths(NamedTuple):
    run: str  # the run's folder on this host
    fifo: str
    log: str
    cwd: str
    output: str


class Job(NamedTuple):
    label: str  # "agent", or the local rank
    description: Dict[str, Any]  # as job.become wants it


def places(spec: Dict[str, Any], order: gang_events.Run, paths: Paths) -> Dict[str, str]:
    """The values for the templates' places."""
    alone = order.nnodes == 1
    local_addr = "127.0.0.1" if alone else spec.get("cluster_address") or network.source_address(order.master_addr)
    interface = spec["interface"]
    if interface == "auto":
        interface = network.interface_of(local_addr)
    elif not alone and not spec.get("cluster_address"):
        local_addr = network.address_of(interface) or local_addr
    return {
        **_node_places(spec),
        "master_addr": order.master_addr,
        "master_port": str(order.master_port),
        "rdzv_endpoint": network.endpoint(order.master_addr, order.master_port),
        "node_rank": str(order.node_rank),
        "nnodes": str(order.nnodes),
        "local_addr": local_addr,
        "interface": interface,
        "nccl_interface": network.nccl_name(interface),
        "attempt": str(order.attempt),
        "rdzv_id": "%s-%d" % (spec["run_id"], order.attempt),
        "is_host": "1" if order.node_rank == 0 else "0",
        "log_dir": os.path.join(paths.run, "torchrun"),
    }


def jobs(
    spec: Dict[str, Any], private: Dict[str, Any], order: gang_events.Run, paths: Paths, program: List[str]
) -> Tuple[List[Job], Dict[str, Any]]:
    """The jobs of an attempt, and what rank-exec reads from its file (which holds no secret: those are inherited)."""
    secrets: Dict[str, str] = private["secrets"]
    fill = places(spec, order, paths)
    auto = {name: value.format_map(fill) for name, value in spec["auto_env"].items()}
    environment = _environment(spec, secrets, auto, paths.output)
    environment["DDP_ORCH_ATTEMPT"] = str(order.attempt)
    rank: Dict[str, Any] = {
        "argv": _command(spec["command"], paths.output),
        "cwd": paths.cwd,
        "first_rank": order.first_rank,
        "stdout": os.path.join(paths.fifo, "%d.*.out" % order.attempt),  # *: the rank
        "stderr": os.path.join(paths.fifo, "%d.*.err" % order.attempt),
        "register": os.path.join(paths.fifo, "register"),
        "oom_score_adj": OOM_SCORE,
        # torchrun is always started with --max-restarts=0: restarts are the gang's
        "env": {
            "TORCHELASTIC_RESTART_COUNT": str(order.attempt - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(spec["max_restarts"]),
        },
    }
    if spec["agent_argv"]:
        rank_file = os.path.join(paths.run, "rank.json")
        if spec["launcher"]["name"] == MPIRUN:
            rank["mpi"] = {"program": program, "local_addr": fill["local_addr"]}
            return [_mpirun(spec, private["key"], order, paths, environment, rank)], rank
        argv = [spec["python"]] + [word.format_map(fill) for word in spec["agent_argv"]]
        argv += program + ["rank-exec", rank_file]
        own_resolver = "RES_OPTIONS" not in spec["env"] and "RES_OPTIONS" not in secrets
        if own_resolver:
            rank["env"]["RES_OPTIONS"] = environment["RES_OPTIONS"]
        agent = dict(environment, RES_OPTIONS=AGENT_RESOLVER) if own_resolver else environment
        return [_agent(argv, agent, order, paths)], rank
    values = {**fill, **placeholders.of_host(spec, order, paths.output)}
    if spec["launcher"]["scope"] == "host":
        return [_once_per_host(spec, order, rank, environment, values)], rank
    return [_direct(spec, order, rank, environment, values, local_rank) for local_rank in range(spec["nproc"])], rank


def _agent(argv: List[str], environment: Dict[str, str], order: gang_events.Run, paths: Paths) -> Job:
    job = {"argv": argv, "cwd": paths.cwd, "env": environment}
    for name, channel in (("stdout", "out"), ("stderr", "err")):
        job[name] = os.path.join(paths.fifo, "%d.agent.%s" % (order.attempt, channel))
    return Job("agent", job)


def _mpirun(
    spec: Dict[str, Any],
    key: str,
    order: gang_events.Run,
    paths: Paths,
    environment: Dict[str, str],
    rank: Dict[str, Any],
) -> Job:
    """The agent is a program of ours, which starts mpirun. `rank` gets what the agent has to know (mpi/place.py)."""
    rank["mpi"].update(
        python=spec["python"],
        ranks=spec["nproc"],
        world_size=order.world_size,
        node_rank=order.node_rank,
        nnodes=order.nnodes,
        master_addr=order.master_addr,
        master_port=order.master_port,
    )
    rank["env"].update(
        LOCAL_WORLD_SIZE=str(spec["nproc"]),
        WORLD_SIZE=str(order.world_size),
        MASTER_ADDR=order.master_addr,
        MASTER_PORT=str(order.master_port),
    )
    message = b"mpirun %d" % order.attempt  # each attempt has a key of its own, as each has other processes
    attempt_key = hmac.new(bytes.fromhex(key), message, hashlib.sha256).hexdigest()
    argv = rank["mpi"]["program"] + [MPIRUN, os.path.join(paths.run, "rank.json")]
    return _agent(argv, dict(environment, **{MPI_KEY: attempt_key}), order, paths)


def _once_per_host(
    spec: Dict[str, Any],
    order: gang_events.Run,
    rank: Dict[str, Any],
    environment: Dict[str, str],
    values: Dict[str, str],
) -> Job:
    """The user's command. Its output has the number of the node, as that of a rank has the number of the rank."""
    launcher = spec["launcher"]
    env = {name: value for name, value in launcher["env"].items() if name not in spec["env"]}
    own = {name: placeholders.fill_in(value, values) for name, value in env.items()}
    argv = spec["command"][:SHIM_WORDS] + placeholders.host_argv(launcher, spec["command"][SHIM_WORDS:], values)
    ready = launcher["ready"] if order.node_rank == 0 else ""
    if ready:
        own[READY] = placeholders.fill_in(ready, values)
    of_host = {name: placeholders.fill_in(value, values) for name, value in HOST_VARIABLES.items()}
    job = dict(rank, argv=argv, env={**environment, **of_host, **own})
    for channel in ("stdout", "stderr"):
        job[channel] = rank[channel].replace("*", str(order.first_rank))
    return Job("0", job)


def preload_job(spec: Dict[str, Any], secrets: Dict[str, str], cwd: str, output: str) -> Dict[str, Any]:
    """A rank without what is known only when an attempt begins: its number, and the interface.

    With `run.warm`, also without what belongs to the run: its variables and its secrets.
    """
    auto = {name: value.format_map(_node_places(spec)) for name, value in spec["auto_env"].items() if _is_early(value)}
    if "warm_key" in spec:
        own = {name: value for name, value in spec["env"].items() if _fill_in(value, output) == value}
        environment = {**auto, **own, NO_MARK: "-" * len(spec["run_id"])}
    else:
        environment = _environment(spec, secrets, auto, output)
    environment.update(_early_variables(spec))
    return {"argv": _command(spec["command"], output), "cwd": cwd, "env": environment, "oom_score_adj": OOM_SCORE}


def late_names(spec: Dict[str, Any]) -> List[str]:
    """The variables of a rank whose values are known only when an attempt begins."""
    auto = [name for name, value in spec["auto_env"].items() if not _is_early(value)]
    early = _early_variables(spec)
    return [*auto, *(name for name in spec["launcher"]["env"] if name not in early), *OF_RANK]


def _early_variables(spec: Dict[str, Any]) -> Dict[str, str]:
    """The variables of the launcher whose values are known before an attempt, and are the same for all ranks."""
    known = {"nproc_per_node": str(spec["nodes"][spec["node"]]["ranks"]), "host": spec["host"]}
    known["python"] = spec["python"]
    variables = spec["launcher"]["env"].items()
    return {
        name: placeholders.fill_in(value, known)
        for name, value in variables
        if placeholders.names_in(value) <= set(known)
    }


def shell_environment(spec: Dict[str, Any], secrets: Dict[str, str], output: str) -> Dict[str, str]:
    """The variables of the ranks, without what belongs to one rank or attempt, and without the mark of the run.

    So a process that the user starts with it does not count as one of the run.
    """
    known = _node_places(spec)
    interface = spec["interface"]
    own = spec.get("cluster_address")
    addresses: List[str] = [own] if own else spec.get("link_addresses", [])
    if interface == "auto" and addresses:
        interface = network.interface_of(network.source_address(addresses[0]))
    if interface != "auto":
        known.update(interface=interface, nccl_interface=network.nccl_name(interface))
    auto = {name: value for name, value in spec["auto_env"].items() if _places_in(value) <= known.keys()}
    environment = _environment(spec, secrets, {name: value.format_map(known) for name, value in auto.items()}, output)
    del environment[processes.MARK]
    return environment


def _is_early(template: str) -> bool:
    """Whether the value is known before an attempt."""
    return _places_in(template) <= {"nproc", "threads"}


def _places_in(template: str) -> Set[str]:
    return {place for _, place, _, _ in string.Formatter().parse(template) if place is not None}


def _node_places(spec: Dict[str, Any]) -> Dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, spec["nodes"][spec["node"]]["ranks"]))
    return {"nproc": str(spec["nproc"]), "threads": str(threads)}


def _environment(spec: Dict[str, Any], secrets: Dict[str, str], auto: Dict[str, str], output: str) -> Dict[str, str]:
    memory = os.path.join(memory_folder.path(spec), memory_folder.SAVED) if memory_folder.is_wanted(spec) else None
    return {
        **auto,
        **{name: _fill_in(value, output) for name, value in spec["env"].items()},
        **secrets,
        processes.MARK: spec["run_id"],
        "DDP_ORCH_RUN_NAME": spec["name"],
        "DDP_ORCH_OUTPUT_DIR": output,
        **({"DDP_ORCH_MEMORY_DIR": memory} if memory else {}),
    }


def _command(words: List[str], output: str) -> List[str]:
    """python, -u, the script or -m and a module; then its arguments."""
    begin = _first_argument(words)
    return words[:begin] + [_fill_in(word, output) for word in words[begin:]]


def _first_argument(words: List[str]) -> int:
    return 4 if words[2:3] in (["-m"], ["-c"]) else 3


def _fill_in(text: str, output: str) -> str:
    return OUTPUT.sub(lambda match: output if match.group() == "{output}" else "{output}", text)


def _direct(
    spec: Dict[str, Any],
    order: gang_events.Run,
    rank: Dict[str, Any],
    environment: Dict[str, str],
    values: Dict[str, str],
    local_rank: int,
) -> Job:
    """A rank with the environment that torchrun's static mode gives.

    From torch/distributed/elastic/agent/server/local_elastic_agent.py. One value has to differ: no agent serves
    the store, so rank 0 does (TORCHELASTIC_USE_AGENT_STORE=False).
    """
    number = order.first_rank + local_rank
    given = {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(number),
        "GROUP_RANK": str(order.node_rank),
        "ROLE_RANK": str(number),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(spec["nproc"]),
        "WORLD_SIZE": str(order.world_size),
        "GROUP_WORLD_SIZE": str(order.nnodes),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RUN_ID": "%s-%d" % (spec["run_id"], order.attempt),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "TORCHELASTIC_ERROR_FILE": os.path.join(os.path.dirname(rank["register"]), "..", "error.%d.json" % local_rank),
    }
    launcher = spec["launcher"]
    values = dict(values, rank=str(number), local_rank=str(local_rank))
    given.update({name: placeholders.fill_in(value, values) for name, value in launcher["env"].items()})
    argv = list(rank["argv"])
    if launcher["rank_argument"]:
        argv.insert(_first_argument(argv), placeholders.fill_in(launcher["rank_argument"], values))
    argv = placeholders.around(argv, launcher["argv"], values)
    job = dict(rank, argv=argv, env={**environment, **given, **rank["env"]})
    for channel in ("stdout", "stderr"):
        job[channel] = rank[channel].replace("*", str(number))
    return Job(str(local_rank), job)
