"""What the implementations of MPI want: the hostfile, the command line of mpirun, and its variables.

Open MPI: https://docs.open-mpi.org, `ompi_info --all`. MPICH, Intel MPI and MVAPICH have Hydra: `mpiexec -help`.
"""

import ipaddress
import os
from typing import Dict, List, NamedTuple

from ..host import network
from ..host.run_command import output_of
from .place import RANK_SCRIPT, Place

VERSION_WINDOW = 30.0  # s; a network file system may be slow
RANK = ["/bin/sh", "-c", 'exec "$%s"' % RANK_SCRIPT]  # the same words on all hosts, whose paths may differ


class Slots(NamedTuple):
    address: str
    ranks: int


class Start(NamedTuple):
    argv: List[str]
    env: Dict[str, str]


def is_hydra(mpirun: str) -> bool:
    """Whether it is MPICH's. Raises OSError if it is no mpirun that we know."""
    version = output_of([mpirun, "--version"], VERSION_WINDOW)
    if any(name in version for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun")):
        return False
    if any(name in version for name in ("HYDRA", "Intel(R) MPI", "MVAPICH")):
        return True
    raise OSError("%s is neither Open MPI nor MPICH: --version prints %r" % (mpirun, version[:80]))


def open_mpi(mpirun: str, place: Place, hosts: List[Slots], hostfile: str, agent: str) -> Start:
    _write(hostfile, ["%s slots=%d" % host for host in hosts])
    argv = [mpirun, "--hostfile", hostfile, "-np", str(place.world_size), "--wdir", "/"]
    parameters = {
        "plm": "rsh",  # in a job, too, the hosts are those of the run
        "ras": "^slurm,tm,lsf,gridengine,loadleveler,alps",
        "plm_rsh_agent": "/bin/sh " + agent,  # its daemons check that the first word exists on their hosts too
        "plm_rsh_no_tree_spawn": "1",  # only this host has connections to all others
        "orte_leave_session_attached": "1",
        "rmaps_base_mapping_policy": "slot",  # ranks are numbered by the order of the hosts
    }
    subnet = _common_subnet(place, hosts)
    if subnet:  # otherwise it would take docker0, which has the same address everywhere
        parameters.update(oob_tcp_if_include=subnet, btl_tcp_if_include=subnet)
    for name, value in parameters.items():
        argv += ["--mca", name, value]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    # its default binds each rank to one core, on which the threads of a DataLoader would run too
    binding = "OMPI_MCA_hwloc_base_binding_policy"
    return Start([*argv, *RANK], {} if binding in os.environ else {binding: "none"})


def hydra(mpirun: str, place: Place, hosts: List[Slots], hostfile: str, agent: str) -> Start:
    _write(hostfile, ["%s:%d" % host for host in hosts])
    argv = [mpirun, "-f", hostfile, "-n", str(place.world_size), "-wdir", "/", "-rmk", "user"]
    argv += ["-launcher", "ssh", "-launcher-exec", agent, "-iface", network.interface_of(place.local_addr)]
    # the variables of each host are those of the run there, and the guard ends the ranks
    argv += ["-genvnone", "-disable-auto-cleanup"]
    return Start([*argv, *RANK], {})


def _common_subnet(place: Place, hosts: List[Slots]) -> str:
    """The subnet that has the addresses of all hosts; empty if there is none."""
    subnet = network.subnet_of(place.local_addr)
    if subnet is None or any(":" in host.address for host in hosts):
        return ""
    return str(subnet) if all(ipaddress.IPv4Address(host.address) in subnet for host in hosts) else ""


def _write(path: str, lines: List[str]) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("".join(line + "\n" for line in lines))
