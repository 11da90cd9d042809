"""The verb `mpi-rank FILE`: what mpirun starts as a rank. Forks, and the child becomes the user's command.

mpirun reaps a rank at once, so that nobody else can see its exit status, and then kills the ranks of all hosts. This
process stays between the two: it does not reap its child, and after a failure it waits for the guard, which stops all
hosts and names the rank.
"""

import os
import signal
import sys
import time
from typing import List

from ..host import processes
from ..ranks import job

VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), ("PMI_RANK", "MPI_LOCALRANKID"))
HOLD = 20.0  # s after a failure until mpirun learns of it; the guards of all hosts end the attempt before
LOOK = 0.1  # s for the guard to see the status of a rank that ended well


def main(arguments: List[str]) -> int:
    """Returns what mpirun takes for the exit status of the rank."""
    for rank, local_rank in VARIABLES:
        if rank in os.environ and local_rank in os.environ:
            os.environ.update(RANK=os.environ[rank], LOCAL_RANK=os.environ[local_rank])
            break
    else:
        sys.stderr.write("ddp-orch: mpirun has set neither OMPI_COMM_WORLD_RANK nor PMI_RANK\n")
        return job.NOT_STARTED
    processes.die_with_parent(os.getppid())
    if os.getpgrp() != os.getpid():  # MPICH has made a session for it
        os.setpgid(0, 0)  # the guard sends SIGTERM to this group
    stopped: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        job.rank_exec(arguments)
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    code = ended.si_status if ended is not None else 1
    if ended is not None and ended.si_code != os.CLD_EXITED:
        code += 128
    deadline = time.monotonic() + (HOLD if code else LOOK)
    while not stopped and time.monotonic() < deadline:
        time.sleep(0.02)
    return code
