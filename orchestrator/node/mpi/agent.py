"""The verb `mpirun`: the agent of a run with this launcher."""

import os
import signal
import sys

from ..link.link import LinkClosed
from ..ranks.launch import MPI_KEY
from . import mpirun_head, mpirun_worker
from .place import read


def main(path: str) -> int:
    """`path`: the file of rank-exec. The key is in the environment. Returns the exit status."""
    key = bytes.fromhex(os.environ.pop(MPI_KEY))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    place = read(path)
    try:
        if place.node_rank == 0:
            return mpirun_head.run(place, key)
        return mpirun_worker.run(place, key)
    except LinkClosed as error:
        sys.stderr.write("ddp-orch: mpirun: lost the connection between the hosts: %s\n" % error)
        return 1
    except OSError as error:
        sys.stderr.write("ddp-orch: mpirun: %s\n" % error)
        return 1
