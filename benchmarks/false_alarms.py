"""Whether a bad network alone ends or restarts a run: losses and elections while nothing is wrong with any host.

Three hosts of the lab, with the default lease. On the links of all but the head, every frame is held back for DELAY ms
and LOSS % are dropped, in each direction. A run without and one with the election of a head go on at the same time.

    python benchmarks/false_alarms.py [--minutes 30] [--delay 300] [--loss 10] [--limit 0]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e import driver
from lab.lab import Lab
from lab.waiting import wait_until

WORK = "import time\nwhile True:\n    print('working', flush=True)\n    time.sleep(1)\n"


def start(lab: Lab, mode: str) -> tuple[Path, str]:
    """A run; its inventory and id."""
    run = {"launcher": "direct", "max_restarts": 100, "head_lost": mode, "grace": 2}
    inventory = lab.inventory(name=f"{mode}.yaml", cluster_addresses=True, run=run)
    run_id = driver.start(lab, inventory, "--name", mode, "--", driver.script(lab, WORK, "work.py"))
    wait_until(lambda: len(driver.lines_of(lab, inventory, run_id, "--tail", "1")) >= len(lab.hosts), 60, "all work")
    return inventory, run_id


def report(lab: Lab, run_id: str) -> dict[str, Any]:
    """What has become of a run, as its files on the hosts show it."""
    folders = [path for host in lab.hosts for path in host.home.glob(f".local/state/ddp-orch/*/runs/{run_id}")]
    shown = [json.loads(path.read_text()) for folder in folders for path in folder.glob("gang.json")]
    attempts = [int(path.name.split(".")[0]) for folder in folders for path in folder.glob("log/*.run.out.*.seg")]
    lines = [
        line
        for folder in folders
        for path in folder.glob("log/*.run.out.*.seg")
        for line in path.read_text().splitlines()
    ]
    return {
        "labels": sorted({record["label"] for record in shown if "label" in record}),
        "restarts": max(attempts) - 1,
        "elections": max((record.get("epoch", 1) for record in shown), default=1) - 1,
        "failures": sorted({line.partition("first failure: ")[2] for line in lines if "first failure: " in line}),
        "suspicions": sum("suspect: the link to " in line for line in lines),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--delay", type=float, default=300.0, help="ms in each direction")
    parser.add_argument("--loss", type=int, default=10, help="percent in each direction")
    parser.add_argument("--limit", type=int, default=0, help="restarts and elections that may happen")
    asked = parser.parse_args()
    figures: dict[str, Any] = {}
    with Lab(3) as lab:
        started = {mode: start(lab, mode) for mode in ("stop", "elect")}
        for host in lab.hosts[1:]:
            host.delay(asked.delay)
            host.loss(asked.loss)
        time.sleep(asked.minutes * 60)  # the measurement
        for mode, (_, run_id) in started.items():
            figures[mode] = report(lab, run_id)
            print(f"head_lost: {mode:5}  {figures[mode]}")
        for host in lab.hosts:
            host.heal()
        for inventory, run_id in started.values():
            driver.orch(lab, "kill", run_id, "-i", inventory)
    weather = {"hosts": 3, "minutes": asked.minutes, "delay_ms": asked.delay, "loss_percent": asked.loss}
    results.write("false_alarms", {**weather, "head_lost": figures})
    ended = [label for run in figures.values() for label in run["labels"] if label not in ("running", "suspect")]
    alarms = len(ended) + sum(run["restarts"] + run["elections"] for run in figures.values())
    return int(alarms > asked.limit)


if __name__ == "__main__":
    sys.exit(main())
