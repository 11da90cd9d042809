"""What a launcher starts on each node, as data: templates whose `{places}` the node fills in for each attempt. Pure.

The places: master_addr master_port rdzv_endpoint node_rank nnodes nproc local_addr interface nccl_interface attempt
rdzv_id is_host log_dir threads (orchestrator/node/launch.py). The user's own words are never part of a template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Launcher:
    name: str
    agent: tuple[str, ...]
    """Arguments of the host's python for the one process that starts the ranks; empty: the guard starts them itself."""


_TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nnodes={nnodes}",
    "--nproc-per-node={nproc}",
    "--node-rank={node_rank}",
    "--rdzv-id={rdzv_id}",
    "--local-addr={local_addr}",
    # restarts are the gang's: with the budget here, one node would restart while the others are being stopped
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

# unset, is_host is guessed from the host's name, and a new run may join the stale store of an old one
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

DIRECT = Launcher("direct", ())

ENVIRONMENT = {
    # CUDA's own order is by speed; so GPU 2 of `gpus`, of a finding and of a lock is that of nvidia-smi
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GLOO_SOCKET_IFNAME": "{interface}",
    "NCCL_SOCKET_IFNAME": "{nccl_interface}",
    "OMP_NUM_THREADS": "{threads}",
    # the stacks of all threads on a crash, and of a run that hangs (run.stall_timeout)
    "PYTHONFAULTHANDLER": "1",
    # an unreachable DNS server cost a launch 25 to 74 s, mostly in reverse look-ups of peers; with this, 3
    "RES_OPTIONS": "timeout:1 attempts:1",
}

DEBUG_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def choose(launcher: Literal["torchrun", "direct"], backend: Literal["static", "c10d"]) -> Launcher:
    if launcher == "direct":
        return DIRECT
    return TORCHRUN_C10D if backend == "c10d" else TORCHRUN_STATIC
