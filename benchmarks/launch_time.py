"""Launch time: from the command to the first line of all ranks, against `ssh HOST torchrun ...` typed by hand.

Hosts of the lab, the script joins the process group and prints. Ours does its checks; its code was sent once before,
and with `run.warm` its modules were imported once before. The hand-written baseline gives torchrun the same options and
variables, one ssh a host, all at once, with nothing checked. Each round runs every contestant once; ratios are within a
round.

    python benchmarks/launch_time.py [--hosts 8] [--ranks 1] [--rounds 5] [--only NAME]... [--result NAME]
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab

SCRIPT = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
print(f"first line of rank {os.environ['RANK']}\\n", end="", flush=True)  # in one write: ranks share a pipe
dist.barrier()
dist.destroy_process_group()
"""
FIRST_LINE = re.compile(r"first line of rank (\d+)")
BY_HAND = "ssh torchrun by hand"


def until_all_have_spoken(processes: list[subprocess.Popen[str]], wanted: int) -> float:
    """Seconds from now until `wanted` ranks have printed; then waits for the processes to end."""
    began = time.monotonic()
    spoke_at: dict[str, float] = {}

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            for rank in FIRST_LINE.findall(line):  # torchrun may put the lines of several ranks on one line
                spoke_at[rank] = time.monotonic() - began

    readers = [threading.Thread(target=read, args=(process,)) for process in processes]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for process in processes:
        assert process.wait() == 0, process.args
    assert len(spoke_at) == wanted, f"only ranks {sorted(spoke_at)} printed"
    return max(spoke_at.values())


def by_hand(lab: Lab, ranks: int, port: int) -> float:
    head = lab.hosts[0]
    processes = []
    for rank, host in enumerate(lab.hosts):
        nic = "eth0"
        line = (
            f"cd bench && GLOO_SOCKET_IFNAME={nic} NCCL_SOCKET_IFNAME={nic} OMP_NUM_THREADS=2 "
            f"RES_OPTIONS='timeout:1 attempts:1' {shlex.quote(lab.python)} -m torch.distributed.run "
            f"--rdzv-backend=static "
            f"--master-addr={head.address} --master-port={port} --nnodes={len(lab.hosts)} --nproc-per-node={ranks} "
            f"--node-rank={rank} --local-addr={host.address} --max-restarts=0 train.py"
        )
        argv = ["ssh", "-o", "BatchMode=yes", f"ann@{host.address}", line]
        processes.append(lab.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL))
    return until_all_have_spoken(processes, ranks * len(lab.hosts))


def ours(lab: Lab, ranks: int, launcher: str, **options: str) -> float:
    name = "-".join([launcher, *options])
    defaults = {"user": "ann", "python": lab.python, "nproc_per_node": ranks}
    inventory = lab.inventory(name=f"{name}.yaml", run={"launcher": launcher, **options}, defaults=defaults)
    argv = ["ddp-orch", "up", str(inventory), "--", "train.py"]
    process = lab.popen(
        argv,
        cwd=lab.controller_home / "bench",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    return until_all_have_spoken([process], ranks * len(lab.hosts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1, help="of each host")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a contestant beside the baseline; default: all")
    parser.add_argument("--result", default="launch_time", help="name of the file in results/")
    asked = parser.parse_args()
    with Lab(asked.hosts) as lab:
        folder = lab.controller_home / "bench"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        for host in lab.hosts:
            host.sh("mkdir bench && cat > bench/train.py", input=SCRIPT, check=True)
        contestants: dict[str, Callable[[int], float]] = {
            BY_HAND: lambda turn: by_hand(lab, asked.ranks, 29500 + turn),
            "ddp-orch, torchrun": lambda turn: ours(lab, asked.ranks, "torchrun"),
            "ddp-orch, direct": lambda turn: ours(lab, asked.ranks, "direct"),
            "ddp-orch, direct, warm": lambda turn: ours(lab, asked.ranks, "direct", warm="15m"),
        }
        if asked.only:
            contestants = {name: contestants[name] for name in (BY_HAND, *asked.only)}
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(asked.rounds + 1):
            for name, contestant in contestants.items():
                took = contestant(turn)
                if turn:  # the first round warms caches, and sends the code
                    seconds[name].append(took)
    print(results.table(seconds, BY_HAND))
    results.write(asked.result, {"hosts": asked.hosts, "ranks": asked.ranks, "seconds": seconds})


if __name__ == "__main__":
    main()
