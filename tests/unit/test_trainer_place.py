"""Every launcher tells a rank its place in words of its own."""

from __future__ import annotations

import pytest

from trainer.config import ConfigError
from trainer.place import Place, find, first_host

PLACES = {
    "alone": ({}, Place(0, 0, 1, 1, "none")),
    "torchrun, and torch.distributed.launch": (
        {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"},
        Place(5, 1, 8, 4, "torchrun"),
    ),
    "torchrun under srun": (
        {"RANK": "1", "WORLD_SIZE": "2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        Place(1, 0, 2, 1, "torchrun"),
    ),
    "mpirun on one host": (
        {
            "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        Place(1, 1, 2, 2, "mpirun", "127.0.0.1"),
    ),
    "mpirun on two hosts": (
        {
            "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4444",
        },
        Place(3, 1, 4, 2, "mpirun", "10.0.0.1", 4444),
    ),
    "mpiexec of MPICH": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        Place(1, 1, 2, 2, "mpiexec", "127.0.0.1"),
    ),
    "srun": (
        {
            "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_LOCALID": "1",
            "SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "11", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
            "SLURM_STEP_NODELIST": "gpu-[03-05]",
        },
        Place(9, 1, 11, 3, "srun", "gpu-03", 23456),
    ),
    "srun --mpi=pmi2": (
        {
            "PMI_RANK": "1", "PMI_SIZE": "3", "PMI_FD": "13", "PMI_JOBID": "1.0",
            "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0",
            "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NODELIST": "node-[0-1]",
        },
        Place(1, 1, 3, 2, "srun", "node-0", 20001),
    ),
    "mpiexec of MPICH in a job of Slurm: srun starts its proxies": (
        {
            "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "MASTER_ADDR": "node-0",
            "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
            "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "node-[0-1]",
        },
        Place(3, 1, 4, 2, "mpiexec", "node-0"),
    ),
    "a batch script of Slurm, without srun": (
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        Place(0, 0, 1, 1, "none"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("launcher", PLACES)
def test_a_rank_finds_its_place(launcher: str) -> None:
    environ, place = PLACES[launcher]
    assert find(environ) == place


def test_mpirun_on_several_hosts_has_to_say_where_rank_0_is() -> None:
    environ = dict(PLACES["mpirun on two hosts"][0])
    del environ["MASTER_ADDR"]
    with pytest.raises(ConfigError, match=r"\bmpirun\b.*\bMASTER_ADDR\b"):
        find(environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("one", "one"),
        ("a,b,c", "a"),
        ("gpu[3,5-7]", "gpu3"),
        ("gpu-[03-05,9],login", "gpu-03"),
        ("r[1-2]n-ib", "r1n-ib"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurms_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
