"""What a launcher starts on each node, as data: templates whose placeholders the node fills in for each attempt. Pure.

The placeholders: master_addr master_port rdzv_endpoint node_rank nnodes nproc local_addr interface nccl_interface
attempt rdzv_id is_host log_dir threads (orchestrator/node/run/launch.py). User arguments are never part of a template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Launcher:
    name: str
    agent: tuple[str, ...]
    """Arguments of python for the process that starts the ranks of a node; empty: the guard starts them itself."""


_TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nnodes={nnodes}",
    "--nproc-per-node={nproc}",
    "--node-rank={node_rank}",
    "--rdzv-id={rdzv_id}",
    "--local-addr={local_addr}",
    # The gang restarts all nodes together. With a budget of its own, one node would restart while others are stopped.
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

# without is_host, torchrun guesses it from the host's name, and a new run may join the stale store of an old one
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

# Makes older versions of torch respect that variable; they kill their ranks 30 s after SIGTERM. Freezing torchrun and
# signalling the ranks directly is no alternative: torchrun on the head serves the store, which a snapshot of all ranks
# may need. This is a template, so it must not contain braces.
_OLDER_TORCHRUN = """
import os
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import main

close, patience = PContext.close, int(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
if not hasattr(LaunchConfig, "shutdown_timeout"):
    # a call without a signal ends the remaining ranks after a failure; its timeout stays
    PContext.close = lambda self, signal=None, timeout=30: close(self, signal, patience if signal else timeout)
main()
"""

ENVIRONMENT = {
    # CUDA orders GPUs by speed; with this, `gpus`, findings and locks use the numbers of nvidia-smi
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GLOO_SOCKET_IFNAME": "{interface}",
    "NCCL_SOCKET_IFNAME": "{nccl_interface}",
    "OMP_NUM_THREADS": "{threads}",
    # prints the stacks of all threads on a crash, and when a run hangs (run.stall_timeout)
    "PYTHONFAULTHANDLER": "1",
    # ranks have -u; this is for the Python processes that they start
    "PYTHONUNBUFFERED": "1",
    # with an unreachable DNS server, a launch took 25 to 74 s for reverse look-ups of peers; with this, 3 s
    "RES_OPTIONS": "timeout:1 attempts:1",
    # torchrun would kill its ranks 30 s after SIGTERM; the guard does that, after the grace of the stop
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "86400",
}

DEBUG_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def agent_argv(launcher: Launcher, torch: str | None) -> tuple[str, ...]:
    """`launcher.agent` for a host with this version of torch; None: unknown, taken as a recent one."""
    version = re.match(r"(\d+)\.(\d+)", torch or "")
    recent = version is None or (int(version[1]), int(version[2])) >= _WITH_SHUTDOWN_TIMEOUT
    if recent or launcher.agent[:2] != _TORCHRUN_MODULE:
        return launcher.agent
    return ("-c", _OLDER_TORCHRUN, *launcher.agent[2:])


def choose(launcher: Literal["torchrun", "direct"], backend: Literal["static", "c10d"]) -> Launcher:
    if launcher == "direct":
        return DIRECT
    return TORCHRUN_C10D if backend == "c10d" else TORCHRUN_STATIC
