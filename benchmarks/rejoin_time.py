"""Rejoin time: from the end of a cut to the first new step, against a fresh launch of the same run.

Hosts of the lab, one rank each, the bundled trainer under torchrun. In each round a run is launched, and one host is
cut off until the run waits for it. Both times are of the same run, and end with a line of rank 0.

    python benchmarks/rejoin_time.py [--hosts 3] [--rounds 5] [--limit 3]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab

TRAINER = ["--epochs", "10000", "--save-every", "10", "--log-every", "1", "--track", "none"]


def wait_for(lines: Iterator[str], *texts: str) -> float:
    """Read until one line after the other has its text; the moment of the last one."""
    for text in texts:
        if not any(text in line for line in lines):
            raise SystemExit(f"the run has ended without a line with {text!r}")
    return time.monotonic()


def measure(lab: Lab, inventory: Path) -> tuple[float, float]:
    """Seconds of the launch, and from the end of the cut to the first step of the next attempt."""
    began = time.monotonic()
    with lab.popen(
        ["ddp-orch", "up", str(inventory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        launched = wait_for(process.stdout, " step:") - began
        wait_for(process.stdout, " step:20 ")
        lab.hosts[-1].cut("cluster")
        wait_for(process.stdout, "waiting for ")
        lab.hosts[-1].heal()
        healed = time.monotonic()
        rejoined = wait_for(process.stdout, "attempt 2 on ", " step:") - healed
        process.kill()
    lab.run(["ddp-orch", "kill", "-i", str(inventory), "--grace", "1"], timeout=60)
    return launched, rejoined


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=3.0, help="seconds that a rejoin may take beyond a launch")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"launch": [], "rejoin": []}
    with Lab(options.hosts) as lab:
        inventory = lab.inventory(cluster_addresses=True, run={"max_restarts": 3, "args": TRAINER})
        for turn in range(options.rounds + 1):
            launched, rejoined = measure(lab, inventory)
            if turn:  # the first round sends the code
                seconds["launch"].append(launched)
                seconds["rejoin"].append(rejoined)
    difference = median(one - other for one, other in zip(seconds["rejoin"], seconds["launch"], strict=True))
    print(results.table(seconds, "launch"))
    print(f"a rejoin takes {difference:+.2f} s compared with a launch (limit: +{options.limit:g} s)")
    results.write("rejoin_time", {"hosts": options.hosts, "difference_median": difference, "seconds": seconds})
    return int(difference > options.limit)


if __name__ == "__main__":
    sys.exit(main())
