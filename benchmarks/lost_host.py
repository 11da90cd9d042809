"""A host loses its power: how soon a spare whose modules are imported trains in its place, and how many steps are lost.

Lab hosts and a spare, one rank each, launcher direct, snapshots in memory every few steps; a host that is not the head
is switched off. In each round, `run.preload` is used, and then not.

  noticed    from the loss of power until the head has decided that the host is lost
  new step   from then to the first step of the next attempt
  steps      between the last step before the loss and the one from which training continues

    python benchmarks/lost_host.py [--hosts 3] [--rounds 5] [--every 20]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e import driver
from lab.lab import Lab
from lab.waiting import wait_until
from survival import first_step, losses

PRELOADS = {"direct, preloaded": "auto", "direct, by exec": "none"}


def measure(lab: Lab, preload: str, every: int) -> tuple[float, float, int]:
    hosts = [{"name": host.name, "address": host.address, "spare": host is lab.hosts[-1]} for host in lab.hosts]
    flags = ["--log-every=1", "--epochs=1000", "--track=none", "--save-every=100000", f"--save-memory-every={every}"]
    options = {"launcher": "direct", "preload": preload, "max_restarts": 1, "memory_limit": "64MiB", "args": flags}
    inventory = lab.inventory(hosts=hosts, run=options)
    run_id = driver.start(lab, inventory)
    wanted = 2 * every + every // 2
    wait_until(lambda: max(losses(driver.lines_of(lab, inventory, run_id)), default=0) > wanted, 120, "some steps")
    victim = lab.hosts[-2]
    lost_at = time.time()
    victim.crash()

    def lines_of_the_second() -> list[dict[str, Any]]:
        listed = driver.orch(lab, "logs", run_id, "-i", inventory, "--json").stdout  # without those of the lost host
        lines = [json.loads(line) for line in listed.splitlines()]
        return lines if losses([line for line in lines if line["attempt"] == 2]) else []

    lines = wait_until(lines_of_the_second, 120, "a step of the second attempt")
    told = next(line for line in lines if re.search(rf"first failure: {victim.name}: .*\blost\b", line["text"]))
    noticed_at = datetime.fromisoformat(told["at"].replace("Z", "+00:00")).timestamp()
    reached = max(losses([line for line in lines if line["attempt"] == 1]))
    resumed = min(losses([line for line in lines if line["attempt"] == 2]))
    driver.orch(lab, "kill", run_id, "-i", inventory)
    victim.boot()
    return noticed_at - lost_at, first_step(lines, 2) - noticed_at, reached - resumed + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=20)
    asked = parser.parse_args()
    figures: dict[str, list[tuple[float, float, int]]] = {name: [] for name in PRELOADS}
    with Lab(asked.hosts + 1) as lab:
        for _ in range(asked.rounds):
            for name, preload in PRELOADS.items():
                figures[name].append(measure(lab, preload, asked.every))
    rows = {
        what: {name: [one[number] for one in taken] for name, taken in figures.items()}
        for number, what in enumerate(("noticed", "new step", "steps"))
    }
    for what, row in rows.items():
        print(what)
        print(results.table(row, "direct, by exec"))
    results.write("lost_host", {"hosts": asked.hosts, "every": asked.every, **rows})


if __name__ == "__main__":
    main()
