"""What a launcher starts on each node, as data: templates whose placeholders the node fills in for each attempt. Pure.

The placeholders: master_addr master_port rdzv_endpoint node_rank nnodes nproc local_addr interface nccl_interface
attempt rdzv_id is_host log_dir threads (node/ranks/launch.py). User arguments are never part of a template.
`argv`, `worker`, `rank_argument` and `env` have those of inventory/launcher_rows.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import UsageError
from ..inventory.launcher_rows import COMMAND
from ..inventory.model import Inventory
from ..node.ranks.host_variables import HOST_VARIABLES


@dataclass(frozen=True)
class Launcher:
    name: str
    agent: tuple[str, ...] = ()
    """Arguments of python for the process that starts the ranks of a node; empty: the guard starts them itself."""
    scope: Literal["rank", "host"] = "rank"
    """What the user's command is: a rank, or a program that is started once per host and starts the ranks itself."""
    argv: tuple[str, ...] = (COMMAND,)
    """What is started. `{command}` are the user's words; with scope rank, python, the script and its arguments."""
    worker: tuple[str, ...] = ()
    """Scope host: added to argv on all nodes but the first."""
    rank_argument: str = ""
    """Scope rank: an argument of the script, before the user's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the command, in addition to those of every run with this scope."""
    ready: str = ""
    """Scope host: a URL that answers on the first node once the command serves. `{port}` is its flag --port."""
    port: int = 0
    """Scope host: the port without that flag."""

    @property
    def can_preload(self) -> bool:
        """Whether ranks can be forked: the guard starts them, all with the same command."""
        return not self.agent and self.scope == "rank" and not self.rank_argument and self.argv == (COMMAND,)

    def as_spec(self) -> dict[str, Any]:
        """What a node needs to start the command."""
        return {
            "name": self.name,
            "scope": self.scope,
            "argv": list(self.argv),
            "worker": list(self.worker),
            "rank_argument": self.rank_argument,
            "env": dict(self.env),
            "ready": self.ready,
        }


_TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nnodes={nnodes}",
    "--nproc-per-node={nproc}",
    "--node-rank={node_rank}",
    "--rdzv-id={rdzv_id}",
    "--local-addr={local_addr}",
    # The gang restarts all nodes together. With a budget of its own, one node would restart while others are stopped.
    "--max-restarts=0",
    "--log-dir={log_dir}",
    "--no-python",
)

TORCHRUN_STATIC = Launcher(
    "torchrun",
    (
        *_TORCHRUN[:2],
        "--rdzv-backend=static",
        "--master-addr={master_addr}",
        "--master-port={master_port}",
        *_TORCHRUN[2:],
    ),
)

# without is_host, torchrun guesses it from the host's name, and a new run may join the stale store of an old one
TORCHRUN_C10D = Launcher(
    "torchrun",
    (
        *_TORCHRUN[:2],
        "--rdzv-backend=c10d",
        "--rdzv-endpoint={rdzv_endpoint}",
        "--rdzv-conf=is_host={is_host}",
        *_TORCHRUN[2:],
    ),
)

DIRECT = Launcher("direct")
OWN_AGENT = ("mpirun",)
"""In place of arguments of python: a verb of the node program, which starts the ranks of a node."""

OLD_LAUNCH = "torch.distributed.launch"
OLD_LOCAL_RANK = "--local_rank={local_rank}"
"""As scripts know the flag that were written for torch before 2.0."""

_NODES = ("--nnodes={nnodes}", "--node-rank={node_rank}")
_HEALTH = "http://{address}:{port}/health"
PRESETS = (
    DIRECT,
    # the user's own command, once per host
    Launcher("node", scope="host"),
    # It shares the ranks out evenly. Which kind of training it starts: plan/accelerate.py.
    Launcher(
        "accelerate",
        scope="host",
        argv=(
            "{python}",
            "-m",
            "accelerate.commands.launch",
            "--num_machines={nnodes}",
            "--machine_rank={node_rank}",
            "--num_processes={world_size}",
            "--main_process_ip={master_addr}",
            "--main_process_port={master_port}",
            "--rdzv_backend=static",
            COMMAND,
        ),
    ),
    # DeepSpeed passes the flag; everything else it leaves to the variables of torchrun
    Launcher("deepspeed", rank_argument=OLD_LOCAL_RANK),
    Launcher(OLD_LAUNCH, rank_argument="--local-rank={local_rank}"),
    # what scripts read that were written for mpirun, without MPI
    Launcher(
        "mpi",
        env={
            "OMPI_COMM_WORLD_RANK": "{rank}",
            "OMPI_COMM_WORLD_SIZE": "{world_size}",
            "OMPI_COMM_WORLD_LOCAL_RANK": "{local_rank}",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "{nproc_per_node}",
            "OMPI_COMM_WORLD_NODE_RANK": "{local_rank}",
            "PMI_RANK": "{rank}",
            "PMI_SIZE": "{world_size}",
            "PMI_LOCAL_RANK": "{local_rank}",
            "PMI_LOCAL_SIZE": "{nproc_per_node}",
            "MPI_LOCALRANKID": "{local_rank}",
            "MPI_LOCALNRANKS": "{nproc_per_node}",
            "MV2_COMM_WORLD_RANK": "{rank}",
            "MV2_COMM_WORLD_SIZE": "{world_size}",
            "MV2_COMM_WORLD_LOCAL_RANK": "{local_rank}",
            "MV2_COMM_WORLD_LOCAL_SIZE": "{nproc_per_node}",
            "PALS_RANKID": "{rank}",
            "PALS_LOCAL_RANKID": "{local_rank}",
            "PALS_NODEID": "{node_rank}",
        },
    ),
    # A real mpirun, started by the node program (node/mpi). Its ranks have the variables of torchrun too.
    Launcher("mpirun", OWN_AGENT),
    # What scripts read that were written for srun. Of the nodes they need the first; a node knows no other address.
    Launcher(
        "srun",
        env={
            "SLURM_PROCID": "{rank}",
            "SLURM_NTASKS": "{world_size}",
            "SLURM_NPROCS": "{world_size}",
            "SLURM_LOCALID": "{local_rank}",
            "SLURM_NODEID": "{node_rank}",
            "SLURM_NNODES": "{nnodes}",
            "SLURM_JOB_NUM_NODES": "{nnodes}",
            "SLURM_NTASKS_PER_NODE": "{nproc_per_node}",
            "SLURM_GPUS_ON_NODE": "{nproc_per_node}",
            "SLURM_CPUS_PER_TASK": "{threads}",
            "SLURM_JOB_ID": "{job_id}",
            "SLURM_JOBID": "{job_id}",
            "SLURM_JOB_NAME": "{run}",
            "SLURM_JOB_NODELIST": "{master_addr}",
            "SLURM_NODELIST": "{master_addr}",
            "SLURM_LAUNCH_NODE_IPADDR": "{master_addr}",
            "SLURMD_NODENAME": "{host}",
        },
    ),
    # jax.distributed.initialize() without arguments takes the rest from the variables of Slurm (jax 0.10)
    Launcher(
        "jax",
        env={
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_NODELIST": "{master_addr}",
            "SLURM_NTASKS": "{world_size}",
            "SLURM_PROCID": "{rank}",
            "SLURM_LOCALID": "{local_rank}",
            "JAX_COORDINATOR_ADDRESS": "{rdzv_endpoint}",
            "JAX_NUM_PROCESSES": "{world_size}",
            "JAX_PROCESS_ID": "{rank}",
        },
    ),
    # for MultiWorkerMirroredStrategy: a process per host, with all of its GPUs
    Launcher("tensorflow", scope="host", env={"TF_CONFIG": "{tf_config}"}),
    Launcher(
        "ray",
        scope="host",
        argv=("ray", "symmetric-run", "--address={rdzv_endpoint}", "--min-nodes={nnodes}", "--", COMMAND),
    ),
    Launcher(
        "vllm",
        scope="host",
        argv=(COMMAND, *_NODES, "--master-addr={master_addr}", "--master-port={master_port}"),
        worker=("--headless",),
        # by default, vLLM takes the interface with the default route
        env={"VLLM_HOST_IP": "{local_addr}"},
        ready=_HEALTH,
        port=8000,
    ),
    Launcher(
        "sglang",
        scope="host",
        argv=(COMMAND, *_NODES, "--dist-init-addr={rdzv_endpoint}"),
        ready=_HEALTH,
        port=30000,
    ),
    # what the `run` of a task of SkyPilot reads, and the `commands` of one of dstack
    Launcher(
        "skypilot",
        scope="host",
        env={
            "SKYPILOT_NODE_IPS": "{address_lines}",
            "SKYPILOT_NODE_RANK": "{node_rank}",
            "SKYPILOT_NUM_NODES": "{nnodes}",
            "SKYPILOT_NUM_GPUS_PER_NODE": "{nproc_per_node}",
            "SKYPILOT_TASK_ID": "{run}",
        },
    ),
    Launcher(
        "dstack",
        scope="host",
        env={
            "DSTACK_NODES_IPS": "{address_lines}",
            "DSTACK_MASTER_NODE_IP": "{master_addr}",
            "DSTACK_NODE_RANK": "{node_rank}",
            "DSTACK_NODES_NUM": "{nnodes}",
            "DSTACK_GPUS_PER_NODE": "{nproc_per_node}",
            "DSTACK_GPUS_NUM": "{world_size}",
            "DSTACK_RUN_NAME": "{run}",
        },
    ),
)

_TORCHRUN_MODULE = ("-m", "torch.distributed.run")
_WITH_SHUTDOWN_TIMEOUT = (2, 13)  # torch that reads TORCH_ELASTIC_SHUTDOWN_TIMEOUT

# Makes older versions of torch respect that variable; they kill their ranks 30 s after SIGTERM. Freezing torchrun and
# signalling the ranks directly is no alternative: torchrun on the head serves the store, which a snapshot of all ranks
# may need. This is a template, so it must not contain braces.
_OLDER_TORCHRUN = """
import os
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import main

close, patience = PContext.close, int(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
if not hasattr(LaunchConfig, "shutdown_timeout"):
    # a call without a signal ends the remaining ranks after a failure; its timeout stays
    PContext.close = lambda self, signal=None, timeout=30: close(self, signal, patience if signal else timeout)
main()
"""

ENVIRONMENT = {
    # CUDA orders GPUs by speed; with this, `gpus`, findings and locks use the numbers of nvidia-smi
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GLOO_SOCKET_IFNAME": "{interface}",
    "NCCL_SOCKET_IFNAME": "{nccl_interface}",
    "OMP_NUM_THREADS": "{threads}",
    # prints the stacks of all threads on a crash, and when a run hangs (run.stall_timeout)
    "PYTHONFAULTHANDLER": "1",
    # ranks have -u; this is for the Python processes that they start
    "PYTHONUNBUFFERED": "1",
    # with an unreachable DNS server, a launch took 25 to 74 s for reverse look-ups of peers; with this, 3 s
    "RES_OPTIONS": "timeout:1 attempts:1",
    # torchrun would kill its ranks 30 s after SIGTERM; the guard does that, after the grace of the stop
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "86400",
}

DEBUG_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def agent_argv(launcher: Launcher, torch: str | None) -> tuple[str, ...]:
    """`launcher.agent` for a host with this version of torch; None: unknown, taken as a recent one."""
    version = re.match(r"(\d+)\.(\d+)", torch or "")
    recent = version is None or (int(version[1]), int(version[2])) >= _WITH_SHUTDOWN_TIMEOUT
    if recent or launcher.agent[:2] != _TORCHRUN_MODULE:
        return launcher.agent
    return ("-c", _OLDER_TORCHRUN, *launcher.agent[2:])


def host_words(launcher: Launcher, words: Sequence[str], values: Mapping[str, str], *, first: bool) -> list[str]:
    """What a launcher of scope host starts, as far as it is known before the start."""
    template = launcher.argv if first else (*launcher.argv, *launcher.worker)
    return [_fill_in(each, values) for word in template for each in (words if word == COMMAND else (word,))]


def host_env(launcher: Launcher, values: Mapping[str, str]) -> dict[str, str]:
    """The variables that a launcher of scope host sets, as far as they are known before the start."""
    return {name: _fill_in(value, values) for name, value in {**HOST_VARIABLES, **launcher.env}.items()}


def _fill_in(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"(?<![${])\{([a-z_]+)\}", lambda match: values.get(match[1], match[0]), word)


def choose(inventory: Inventory) -> Launcher:
    """The launcher of `run.launcher`. Raises UsageError if it cannot preload and has to."""
    launcher = _named(inventory)
    if isinstance(inventory.run.preload, tuple) and not launcher.can_preload:
        raise UsageError(f"run.preload: the launcher {launcher.name} cannot preload; use direct, or remove the key")
    if inventory.run.warm and (not launcher.can_preload or inventory.run.preload == "none"):
        what = f"the launcher {launcher.name}" if not launcher.can_preload else "a run with preload: none"
        raise UsageError(f"run.warm: {what} cannot preload; use launcher direct with preload, or remove the key")
    setup = next((host.name for host in inventory.hosts if host.setup), None)
    if inventory.run.warm and setup is not None:
        why = "have to run before every import; set `python` instead, or remove run.warm"
        raise UsageError(f"run.warm: the lines of `setup` of {setup} {why}")
    return launcher


def _named(inventory: Inventory) -> Launcher:
    name = inventory.run.launcher
    if name in inventory.launchers:
        row = inventory.launchers[name]
        argv = row.argv or (COMMAND,)
        return Launcher(name, scope=row.scope, argv=argv, worker=row.worker, env=row.env, ready=row.ready or "")
    if name == "torchrun":
        return TORCHRUN_C10D if inventory.run.rdzv.backend == "c10d" else TORCHRUN_STATIC
    return next(launcher for launcher in PRESETS if launcher.name == name)


def with_server(launcher: Launcher, words: Sequence[str]) -> Launcher:
    """The launcher with the address and port of `ready` that the words of the command name. "": it serves HTTPS."""
    if not launcher.port:
        return launcher
    if any(word.startswith("--ssl-") for word in words):
        return replace(launcher, ready="")
    address = _value_of("--host", words) or "127.0.0.1"
    if address in ("0.0.0.0", "::"):  # noqa: S104  it only says that the server binds to all
        address = "127.0.0.1"
    elif ":" in address:
        address = f"[{address}]"
    port = _value_of("--port", words) or str(launcher.port)
    return replace(launcher, ready=launcher.ready.replace("{address}", address).replace("{port}", port))


def _value_of(flag: str, words: Sequence[str]) -> str:
    """The last value of a flag; "" without it."""
    values = [after for word, after in itertools.pairwise(words) if word == flag]
    values += [word.partition("=")[2] for word in words if word.startswith(flag + "=")]
    return values[-1] if values else ""


def for_own_scripts(inventory: Inventory) -> Inventory:
    """The inventory with a launcher that starts ranks, as the scripts of ddp-orch need it."""
    if choose(inventory).scope == "rank":
        return inventory
    return replace(inventory, run=replace(inventory.run, launcher="torchrun"))


def check_even(launcher: Launcher, ranks: Mapping[str, int], nnodes: tuple[int, int], spares: int) -> None:
    """`ranks`: those of each host. Raises UsageError if a launcher of scope host cannot be right with uneven hosts."""
    if launcher.scope == "rank" or len(set(ranks.values())) == 1:
        return
    listed = ", ".join(f"{host} {count}" for host, count in ranks.items())
    if any("{world_size}" in word for word in launcher.argv):
        why = f"{launcher.name} shares the ranks out evenly"
    elif spares or nnodes[0] != nnodes[1]:
        why = "WORLD_SIZE would depend on which hosts take part"
    else:
        return
    cure = "Set the same nproc_per_node for all hosts, or use run.launcher: torchrun with your script"
    if launcher.name == "accelerate":
        cure = "Set nproc_per_node of each host; torchrun then starts the ranks, unless they use FSDP or DeepSpeed"
    raise UsageError(
        f"run.launcher: {launcher.name}: the hosts have different numbers of ranks ({listed}), but {why}. {cure}"
    )
