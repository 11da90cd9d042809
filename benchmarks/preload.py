"""What `run.preload` saves: ranks are forked from a process that has imported torch, in place of started by exec.

Lab hosts, one rank each, the bundled trainer. Each round runs every contestant once; ratios are within a round.

  first step     from `up` to the first step of rank 0
  new step       from the kill of a rank to the first step of the next attempt
  memory         of the ranks and the preloader of one host (PSS), at the end of the round

    python benchmarks/preload.py [--hosts 3] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e import driver
from lab.lab import Lab
from lab.waiting import wait_until
from survival import first_step, losses, rank_pid

CONTESTANTS: dict[str, dict[str, Any]] = {
    "direct, by exec": {"launcher": "direct", "preload": "none"},
    "direct, preloaded": {"launcher": "direct", "preload": "auto"},
    "torchrun": {"launcher": "torchrun"},
}
ARGUMENTS = ["--save-every", "10", "--log-every", "1", "--epochs", "1000"]


def memory(lab: Lab, run_id: str) -> float:
    """MiB of all processes of the run on host 1, each shared page counted once."""
    host = lab.hosts[1]
    files = " ".join(f"/proc/{process.pid}/smaps_rollup" for process in host.marked(run_id))
    text = host.sh(f"cat {files}", "root").stdout
    return sum(int(line.split()[1]) for line in text.split("\n") if line.startswith("Pss:")) / 1024


def measure(lab: Lab, options: dict[str, Any]) -> tuple[float, float, float]:
    inventory = lab.inventory(run={"max_restarts": 1, "args": ARGUMENTS, **options})
    launched = time.time()
    run_id = driver.start(lab, inventory)

    def step() -> int:
        return max(losses(driver.lines_of(lab, inventory, run_id)), default=0)

    wait_until(lambda: step() > 12, 120, "step 12")
    pid = rank_pid(lab, 1, run_id, "trainer")
    killed_at = time.time()
    lab.hosts[1].sh(f"kill -9 {pid}", "root", check=True)

    def lines_of_the_second() -> list[dict[str, Any]]:
        lines = driver.lines_of(lab, inventory, run_id)
        return lines if losses([line for line in lines if line["attempt"] == 2]) else []

    lines = wait_until(lines_of_the_second, 120, "a step of the second attempt")
    used = memory(lab, run_id)
    driver.orch(lab, "kill", run_id, "-i", inventory)
    return first_step(lines, 1) - launched, first_step(lines, 2) - killed_at, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTESTANTS}
    with Lab(asked.hosts) as lab:
        for turn in range(asked.rounds + 1):
            for name, options in CONTESTANTS.items():
                figure = measure(lab, options)
                if turn:  # the first round warms caches, and sends the code
                    figures[name].append(figure)
    rows = {
        what: {name: [one[number] for one in taken] for name, taken in figures.items()}
        for number, what in enumerate(("first step", "new step", "memory"))
    }
    for what in ("first step", "new step"):
        print(f"{what}, s")
        print(results.table(rows[what], "direct, by exec"))
    for name, used in rows["memory"].items():
        print(f"memory of a host, {name}: {median(used):.0f} MiB")
    results.write("preload", {"hosts": asked.hosts, **rows})


if __name__ == "__main__":
    main()
