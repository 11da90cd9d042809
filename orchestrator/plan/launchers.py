"""What a launcher starts on each node, as data: templates whose `{places}` the node fills in for each attempt. Pure.

The places: master_addr master_port rdzv_endpoint node_rank nnodes nproc local_addr interface nccl_interface attempt
rdzv_id is_host log_dir threads (orchestrator/node/run/launch.py). The user's own words are never part of a template.
"""

from __future__ import annotations

import re
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

_TORCHRUN_MODULE = ("-m", "torch.distributed.run")
_WITH_SHUTDOWN_TIMEOUT = (2, 13)  # torch that reads TORCH_ELASTIC_SHUTDOWN_TIMEOUT

# What `-m torch.distributed.run` does, with that variable for older torch: after SIGTERM it would kill its ranks in
# 30 s. Stopping torchrun and signalling the ranks ourselves is no way round: on the head it serves the store that a
# snapshot of all ranks may need. No braces in here: it is a template.
_OLDER_TORCHRUN = """
import os
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import main

close, patience = PContext.close, int(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
if not hasattr(LaunchConfig, "shutdown_timeout"):
    # without a signal it ends the ranks that are left after a failure: that stays as it is
    PContext.close = lambda self, signal=None, timeout=30: close(self, signal, patience if signal else timeout)
main()
"""

ENVIRONMENT = {
    # CUDA's own order is by speed; so GPU 2 of `gpus`, of a finding and of a lock is that of nvidia-smi
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GLOO_SOCKET_IFNAME": "{interface}",
    "NCCL_SOCKET_IFNAME": "{nccl_interface}",
    "OMP_NUM_THREADS": "{threads}",
    # the stacks of all threads on a crash, and of a run that hangs (run.stall_timeout)
    "PYTHONFAULTHANDLER": "1",
    # the rank has its own -u; this is for the Pythons that it starts
    "PYTHONUNBUFFERED": "1",
    # an unreachable DNS server cost a launch 25 to 74 s, mostly in reverse look-ups of peers; with this, 3
    "RES_OPTIONS": "timeout:1 attempts:1",
    # after SIGTERM torchrun would kill its ranks in 30 s; it is the guard that does so, after the grace of each stop
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "86400",
}

DEBUG_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def agent_argv(launcher: Launcher, torch: str | None) -> tuple[str, ...]:
    """`launcher.agent` for a host with this version of torch; None: unknown."""
    version = re.match(r"(\d+)\.(\d+)", torch or "")
    new = version is None or (int(version[1]), int(version[2])) >= _WITH_SHUTDOWN_TIMEOUT
    if new or launcher.agent[:2] != _TORCHRUN_MODULE:
        return launcher.agent
    return ("-c", _OLDER_TORCHRUN, *launcher.agent[2:])


def choose(launcher: Literal["torchrun", "direct"], backend: Literal["static", "c10d"]) -> Launcher:
    if launcher == "direct":
        return DIRECT
    return TORCHRUN_C10D if backend == "c10d" else TORCHRUN_STATIC
