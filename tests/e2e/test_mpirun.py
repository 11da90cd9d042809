"""A real mpirun whose daemons on the other hosts are started by ddp-orch: nobody logs in from host to host."""

from __future__ import annotations

import os
import re
import shutil
import time

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, code, lines_of, ok, orch, script, start

IMPLEMENTATIONS = ("mpirun.openmpi", "mpirun.mpich")
absent = [name for name in IMPLEMENTATIONS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(absent) and "CI" not in os.environ, reason=f"not installed: {', '.join(absent)}"),
]
# what a program in C would do, without a compiler: the sum of all ranks
MPI = """
import ctypes, os, signal, sys, time
open_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
lib = ctypes.CDLL("libmpi.so.40" if open_mpi else "libmpich.so.12", ctypes.RTLD_GLOBAL)
def handle(name, number):
    return ctypes.byref(ctypes.c_char.in_dll(lib, name)) if open_mpi else ctypes.c_int(number)
world, integer = handle("ompi_mpi_comm_world", 0x44000000), handle("ompi_mpi_int", 0x4C000405)
plus = handle("ompi_mpi_op_sum", 0x58000003)
lib.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
lib.MPI_Comm_rank(world, ctypes.byref(rank))
lib.MPI_Comm_size(world, ctypes.byref(size))
lib.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, integer, plus, world)
mine = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("place", rank.value, size.value, "sum", total.value, (rank.value, size.value) == mine, *sys.argv[1:], flush=True)
def finish():
    if open_mpi:
        lib.MPI_Finalize()
    else:  # without MPI_Finalize, in which MPICH with UCX over TCP may hang: 23 of 60 times here, openucx/ucx#8738
        lib.MPI_Barrier(world)
        os.write(int(os.environ["PMI_FD"]), b"cmd=finalize\\n")
        os.read(int(os.environ["PMI_FD"]), 1024)
    os._exit(0)
"""
# longer than mpirun waits when it gets the signal itself
SAVING = """
def save(*_):
    time.sleep(6)
    print("saved", flush=True)
    finish()
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture(params=IMPLEMENTATIONS)
def mpirun(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_ranks_of_all_hosts_are_one_world_of_mpi(lab3: Lab, mpirun: str) -> None:
    script(lab3, MPI + "finish()\n")
    inventory = lab3.inventory(run={"launcher": "mpirun"})
    result = ok(orch(lab3, "up", inventory, "--", mpirun, "-np", "6", "python", "train.py", "--lr", "0.1"))
    places = sorted(re.findall(r":(\d) +\| place (.+)$", result.stdout, re.M))
    assert places == [(str(rank), f"{rank} 6 sum 15 True --lr 0.1") for rank in range(6)], result.stdout
    assert_clean(lab3)


def test_the_rank_that_fails_first_is_named_and_all_others_end(lab3: Lab, mpirun: str) -> None:
    script(lab3, MPI + "sys.exit(3) if rank.value == 2 else time.sleep(600)\n")
    inventory = lab3.inventory(run={"launcher": "mpirun"})
    result = ok(orch(lab3, "up", inventory, "--", mpirun, "-np", "6", "python", "train.py"), 1)
    assert "node-1: rank 2: exit code 3" in result.stderr, result.stderr
    assert_clean(lab3)


def test_all_ranks_have_the_grace_of_a_stop(lab3: Lab, mpirun: str) -> None:
    """mpirun itself would kill them two seconds after a SIGTERM."""
    script(lab3, MPI + SAVING)
    inventory = lab3.inventory(run={"launcher": "mpirun", "grace": 30})
    run_id = start(lab3, inventory, "--", mpirun, "-np", "6", "python", "train.py")

    def printed(text: str) -> set[int]:
        return {line["rank"] for line in lines_of(lab3, inventory, run_id) if line["text"] == text}

    wait_until(lambda: printed("ready") == set(range(6)), 60, "all ranks are ready")
    begin = time.monotonic()
    ok(orch(lab3, "kill", run_id, "-i", inventory))
    assert time.monotonic() - begin < 30
    assert printed("saved") == set(range(6))
    assert_clean(lab3)


def test_a_script_with_mpi4py_is_started_by_mpirun(lab2: Lab) -> None:
    """mpi4py is not installed: an empty module beside the script stands for it."""
    script(lab2, "", "mpi4py.py")
    script(lab2, "import mpi4py\n" + MPI + "finish()\n")
    inventory = lab2.inventory()
    refused = ok(orch(lab2, "up", inventory, "--", "train.py"), 2)
    assert "imports mpi4py" in refused.stderr
    result = ok(orch(lab2, "up", inventory, "--", "mpirun", "-np", "2", "python", "train.py"))
    assert re.findall(r":1 +\| place (.+)$", result.stdout, re.M) == ["1 2 sum 1 True"], result.stdout
    (code(lab2) / "run.sh").write_text('exec python3 train.py "$@"\n')
    result = ok(orch(lab2, "up", inventory, "--", "mpirun", "-np", "2", "bash", "run.sh", "x"))
    assert re.findall(r":1 +\| place (.+)$", result.stdout, re.M) == ["1 2 sum 1 True x"], result.stdout
    assert_clean(lab2)
