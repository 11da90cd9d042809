"""What the guard tells the agent about this host and this attempt. Read from the file of rank-exec."""

import json
import os
import shlex
from typing import Any, Dict, List, NamedTuple

from ..host import network
from ..ranks.launch import MPI_KEY

RANK_SCRIPT = "DDP_ORCH_RANK_SCRIPT"  # the variable with the path of the script that becomes a rank, on each host


class Place(NamedTuple):
    folder: str  # for files of this attempt
    program: List[str]  # the argv of the node program
    rank_file: str  # for rank-exec
    python: str
    ranks: int  # on this host
    world_size: int
    node_rank: int
    nnodes: int
    master_addr: str
    master_port: int
    local_addr: str


def read(path: str) -> Place:
    """`path`: the file of rank-exec. Makes the folder."""
    with open(path, "rb") as file:
        described: Dict[str, Any] = json.loads(file.read())["mpi"]
    folder = os.path.join(os.path.dirname(path), "mpi")
    os.makedirs(folder, 0o700, exist_ok=True)
    return Place(folder=folder, rank_file=path, **described)


def write_script(place: Place, name: str, argv: List[str]) -> str:
    """An executable that becomes `argv` with its own arguments after it; its path."""
    path = os.path.join(place.folder, name)
    text = '#!/bin/sh\nexec %s "$@"\n' % " ".join(shlex.quote(word) for word in argv)
    aside = "%s.%d" % (path, os.getpid())
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
    with os.fdopen(handle, "wb") as file:
        file.write(os.fsencode(text))
    os.rename(aside, path)
    return path


def environment(place: Place) -> Dict[str, str]:
    """The variables of what the agent starts: without its key, and with the programs of the host's Python."""
    folder, path = os.path.dirname(place.python), os.environ.get("PATH", os.defpath)
    if any(os.path.exists(os.path.join(folder, "..", name)) for name in ("pyvenv.cfg", "conda-meta")):
        path = folder + os.pathsep + path
    script = write_script(place, "rank", [*place.program, "mpi-rank", place.rank_file])
    kept = {name: value for name, value in os.environ.items() if name != MPI_KEY}
    return {**_network(place), **kept, "PATH": path, RANK_SCRIPT: script}


def _network(place: Place) -> Dict[str, str]:
    """The interface for MPI's libraries: without it, they take docker0, which has the same address on all hosts."""
    interface = network.interface_of(place.local_addr)
    if network.rdma_ports() or not interface:
        return {}  # they find these by themselves
    return dict.fromkeys(("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"), interface)
