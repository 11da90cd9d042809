"""Which launcher sets a variable that other programs set for their ranks. plan/launchers.py has the values."""

from __future__ import annotations

from pathlib import Path

_OF_TASKS = ("skypilot", "dstack")
"""These start a command once per host, as the tasks of these programs do."""
VARIABLES = {
    "skypilot": (
        "SKYPILOT_NODE_IPS",
        "SKYPILOT_NODE_RANK",
        "SKYPILOT_NUM_NODES",
        "SKYPILOT_NUM_GPUS_PER_NODE",
        "SKYPILOT_TASK_ID",
    ),
    "dstack": (
        "DSTACK_NODES_IPS",
        "DSTACK_MASTER_NODE_IP",
        "DSTACK_NODE_RANK",
        "DSTACK_NODES_NUM",
        "DSTACK_GPUS_PER_NODE",
        "DSTACK_GPUS_NUM",
        "DSTACK_RUN_NAME",
    ),
    "srun": (
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_NPROCS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_NNODES",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_CPUS_PER_TASK",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NAME",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURMD_NODENAME",
    ),
    "mpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_NODE_RANK",
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_LOCAL_RANK",
        "PMI_LOCAL_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
}
"""By launcher. `jax` sets some of those of Slurm, too."""
_LAUNCHER = {name: launcher for launcher, names in VARIABLES.items() for name in names}


def launcher_of(variable: str) -> str | None:
    return _LAUNCHER.get(variable)


MAX_SCRIPT = 1 << 20  # bytes; a longer file is data


def read_launcher(path: Path) -> str:
    """`launcher_of_script` of a file."""
    try:
        with path.open("rb") as file:
            return launcher_of_script(file.read(MAX_SCRIPT))
    except OSError:
        return launcher_of_script(b"")


def launcher_of_script(text: bytes) -> str:
    """The launcher that starts a program of the hosts, by the variables that its script names."""
    return next((name for name in _OF_TASKS if name.upper().encode() + b"_" in text), "node")


def explain(launcher: str) -> str:
    """How to start a script so that it has these variables."""
    option = f"--set run.launcher={launcher}"
    if launcher in _OF_TASKS:
        return f"`{option} -- python SCRIPT` (or `-- bash SCRIPT`), which starts it once per host"
    return f"`{option} -- SCRIPT`"
