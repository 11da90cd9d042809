"""A rank per host of the lab, for benchmarks that train without ddp-orch."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
PORT = 29400


def outputs_of_ranks(lab: Lab, *argv: str) -> list[str]:
    """What the ranks have printed, rank 0 first. `argv`: of python, with `trainer` and this folder on its path."""
    processes = []
    for rank, host in enumerate(lab.hosts):
        variables = {
            "RANK": rank, "WORLD_SIZE": len(lab.hosts), "MASTER_ADDR": lab.hosts[0].cluster_address,
            "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": host.links["cluster"].interface, "OMP_NUM_THREADS": 1,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
        }  # fmt: skip
        command = ["env", *(f"{key}={value}" for key, value in variables.items()), lab.python, *argv]
        processes.append(host.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [str(process.communicate(timeout=560)[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return outputs
