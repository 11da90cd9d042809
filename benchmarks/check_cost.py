"""What `check` costs: the quick part against pdsh's `echo hi`, the mesh, a launch with a name server that is silent.

Hosts of the lab. Every round runs each contestant once, ratios are within a round.

    python benchmarks/check_cost.py [--rounds 3] [--parts quick,many,mesh,dns]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab
from launch_time import SCRIPT, until_all_have_spoken


def seconds_of(lab: Lab, argv: list[str]) -> float:
    began = time.monotonic()
    done = lab.run(argv, timeout=200, env={"PDSH_SSH_ARGS_APPEND": "-o BatchMode=yes"})
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    return took


def pdsh(lab: Lab) -> float:
    hosts = ",".join(host.address for host in lab.hosts)
    return seconds_of(lab, ["pdsh", "-R", "ssh", "-f", str(len(lab.hosts)), "-l", "ann", "-w", hosts, "echo", "hi"])


def check(lab: Lab, *options: str) -> float:
    return seconds_of(lab, ["ddp-orch", "check", str(lab.inventory()), *options])


def launch(lab: Lab, silent: bool) -> float:
    """From the command to the first line of all ranks, where no host finds a name in /etc/hosts."""
    for host in lab.hosts:
        host._write_etc("hosts", "127.0.0.1 localhost\n")
        host.slow_dns() if silent else host.no_dns()
    inventory = lab.inventory(run={"launcher": "torchrun"})
    (lab.controller_home / "bench").mkdir(exist_ok=True)
    (lab.controller_home / "bench" / "train.py").write_text(SCRIPT)
    process = lab.popen(
        ["ddp-orch", "up", str(inventory), "--", "train.py"],
        cwd=lab.controller_home / "bench",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    return until_all_have_spoken([process], len(lab.hosts))


PARTS: dict[str, tuple[int, dict[str, Callable[[Lab], float]]]] = {
    "quick": (8, {"pdsh echo hi": pdsh, "check --quick": lambda lab: check(lab, "--quick")}),
    "many": (64, {"pdsh echo hi": pdsh, "check --quick": lambda lab: check(lab, "--quick")}),
    "mesh": (8, {"check --quick": lambda lab: check(lab, "--quick"), "check": check}),
    "dns": (
        3,
        {"up, names unknown": lambda lab: launch(lab, False), "up, name server silent": lambda lab: launch(lab, True)},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default=",".join(PARTS))
    asked = parser.parse_args()
    for part in asked.parts.split(","):
        count, contestants = PARTS[part]
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        with Lab(count) as lab:
            for turn in range(asked.rounds + 1):
                for name, contestant in contestants.items():
                    took = contestant(lab)
                    if turn:  # the first round warms caches, and sends our program
                        seconds[name].append(took)
        print(f"{part}, {count} hosts\n{results.table(seconds, next(iter(contestants)))}\n", flush=True)
        results.write(f"check_cost_{part}", {"hosts": count, "seconds": seconds})


if __name__ == "__main__":
    main()
