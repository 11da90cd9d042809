"""Which rank this process is, as its launcher's environment says. Never imports torch, never talks to anybody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainer.config import ConfigError

# variables of the rank, the world's size, the rank on this host, the ranks on this host
MPI = {
    "mpirun": (  # Open MPI
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
}  # fmt: skip
PORT = 29500


@dataclass(frozen=True)
class Place:
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    launcher: str  # torchrun (and all who set the same variables), mpirun, mpiexec, srun, none
    master_addr: str = ""  # where rank 0 listens; empty when the launcher has said it, or nobody needs to
    master_port: int = PORT


def find(environ: Mapping[str, str]) -> Place:
    """Raises ConfigError when the launcher has not said enough. torchrun's variables win: it may run under srun."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Place(
            rank=int(environ["RANK"]),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            world_size=int(environ["WORLD_SIZE"]),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            launcher="torchrun",
        )
    in_step = "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ  # a batch script has a PROCID too, but no step
    for launcher, names in MPI.items():
        # `srun --mpi=pmi2` sets PMI_RANK too, without a local rank. MPICH starts its ranks from a step of Slurm's.
        if names[0] in environ and (names[2] in environ or not in_step):
            rank, world_size, local_rank, local_world_size = (int(environ.get(name, "0")) for name in names)
            return _with_master(Place(rank, local_rank, world_size, max(1, local_world_size), launcher), environ)
    if in_step:
        return _with_master(_of_slurm(environ), environ)
    return Place(0, 0, 1, 1, "none")


def _of_slurm(environ: Mapping[str, str]) -> Place:
    world_size = int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1")
    counts: list[int] = []  # tasks by node, from a form like 4(x2),3
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or str(world_size)
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        counts += [int(count)] * int(times or 1)
    node = int(environ.get("SLURM_NODEID", "0"))
    return Place(
        rank=int(environ["SLURM_PROCID"]),
        local_rank=int(environ.get("SLURM_LOCALID", "0")),
        world_size=world_size,
        local_world_size=counts[min(node, len(counts) - 1)],
        launcher="srun",
        master_addr=first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""),
        master_port=20000 + int(environ.get("SLURM_JOB_ID", "0")) % 10000,  # two jobs may share a host
    )


def first_host(nodes: str) -> str:
    """The first of Slurm's list: `gpu-[03-05,9],login` -> `gpu-03`."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


def _with_master(place: Place, environ: Mapping[str, str]) -> Place:
    address = environ.get("MASTER_ADDR") or place.master_addr
    if not address and place.local_world_size == place.world_size:
        address = "127.0.0.1"
    if not address:
        raise ConfigError(
            f"{place.launcher} has not said where rank 0 is; give every rank MASTER_ADDR, the address of rank 0's host "
            "(mpirun -x MASTER_ADDR=ADDRESS ...)"
        )
    port = int(environ.get("MASTER_PORT") or place.master_port)
    return replace(place, master_addr=address, master_port=port)
