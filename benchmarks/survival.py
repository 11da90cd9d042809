"""How fast a run notices what has happened to it, and goes on: a killed worker, a host that is gone, a restart.

Lab hosts, real torchrun where it matters. Seconds are from the fault to what follows it:

  a worker is killed      until no process of the attempt is left on any other host (want: <= 2)
  a host is cut off       until the head says so (want: <= 10 with the default lease)
  a worker is killed      until the first step of the next attempt, against a fresh launch's first step (want: <= + 3)
  losses                  the interrupted run's last loss, and an undisturbed one's, same seed (want: equal)
  false alarms            in MINUTES of a link with 200 ms delay and 5 % loss (want: none)

    python benchmarks/survival.py [--rounds 5] [--minutes 10]
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e import driver
from lab.lab import Lab
from lab.waiting import wait_until

WORK = "import time\nwhile True:\n    print('working', flush=True)\n    time.sleep(0.2)\n"
SAVE_EVERY = 10  # steps


def rank_pid(lab: Lab, host: int, run_id: str, word: str) -> int:
    def found() -> int | None:
        pids = [one.pid for one in lab.hosts[host].marked(run_id) if word in one.argv]
        return pids[0] if len(pids) == 1 else None

    return wait_until(found, 60, f"one {word} on host {host}")


def kill_rank(lab: Lab, host: int, run_id: str, word: str) -> float:
    pid = rank_pid(lab, host, run_id, word)
    lab.hosts[host].sh(f"kill -9 {pid}", "root", check=True)
    return time.monotonic()


def others_gone(lab: Lab, torchrun: bool) -> float:
    """A killed worker on host 1, until nothing of the run is left on the others."""
    inventory = lab.inventory(run={"launcher": "torchrun" if torchrun else "direct"})
    run_id = driver.start(lab, inventory, "--", driver.script(lab, WORK, "work.py"))
    wait_until(lambda: len(driver.lines_of(lab, inventory, run_id, "--tail", "1")) >= len(lab.hosts), 60, "all work")
    began = kill_rank(lab, 1, run_id, "work.py")
    others = [host for number, host in enumerate(lab.hosts) if number != 1]
    wait_until(lambda: not any(host.marked(run_id) for host in others), 60, "the others are gone")
    return time.monotonic() - began


def loss_noticed(lab: Lab) -> float:
    """A host that is cut off, until the head's journal says that it is lost."""
    inventory = lab.inventory(run={"launcher": "direct"})
    run_id = driver.start(lab, inventory, "--", driver.script(lab, WORK, "work.py"))
    wait_until(lambda: len(driver.lines_of(lab, inventory, run_id, "--tail", "1")) >= len(lab.hosts), 60, "all work")
    began = time.time()
    lab.hosts[-1].cut()

    def told() -> float | None:
        for journal in lab.hosts[0].root.glob(f"home/ann/.local/state/ddp-orch/*/runs/{run_id}/log/1.run.out.*.seg"):
            if "host lost" in journal.read_text():
                return journal.stat().st_mtime
        return None

    at = wait_until(told, 60, "the loss is noticed")
    lab.hosts[-1].heal()
    driver.wait_for_state(lab, inventory, run_id, "lost")
    return at - began


def losses(lines: list[dict[str, Any]]) -> dict[int, str]:
    """step -> loss, as printed by rank 0 in the last attempt that came there."""
    found = {}
    for line in lines:
        match = re.search(r"step:(\d+) .*\bloss:([0-9.e+-]+)", line["text"])
        if match and line["rank"] == 0:
            found[int(match[1])] = match[2]
    return found


def recovery(lab: Lab) -> tuple[float, float, int, bool]:
    """(fresh launch, recovery) to the first step, steps lost, whether the last losses are equal."""
    arguments = ["--save-every", str(SAVE_EVERY), "--log-every", "1", "--seed", "7"]
    inventory = lab.inventory(run={"max_restarts": 1, "args": arguments})
    launched = time.time()
    quiet = driver.start(lab, inventory)
    driver.wait_for_state(lab, inventory, quiet, "succeeded", 180)
    undisturbed = driver.lines_of(lab, inventory, quiet)
    fresh = first_step(undisturbed, 1) - launched
    run_id = driver.start(lab, inventory)
    wait_until(lambda: max(losses(driver.lines_of(lab, inventory, run_id)), default=0) > 25, 120, "step 25")
    pid = rank_pid(lab, 1, run_id, "trainer")
    killed_at = time.time()
    lab.hosts[1].sh(f"kill -9 {pid}", "root", check=True)
    driver.wait_for_state(lab, inventory, run_id, "succeeded", 180)
    lines = driver.lines_of(lab, inventory, run_id)
    reached = max(losses([line for line in lines if line["attempt"] == 1]))
    resumed = min(losses([line for line in lines if line["attempt"] == 2]))
    equal = list(losses(lines).items())[-1] == list(losses(undisturbed).items())[-1]
    return fresh, first_step(lines, 2) - killed_at, reached - resumed + 1, equal


def first_step(lines: list[dict[str, Any]], attempt: int) -> float:
    from datetime import datetime

    for line in lines:
        if line["attempt"] == attempt and re.search(r"step:\d+ ", line["text"]):
            return datetime.fromisoformat(line["at"].replace("Z", "+00:00")).timestamp()
    raise AssertionError(f"no step in attempt {attempt}")


def false_alarms(lab: Lab, minutes: float) -> int:
    """Restarts in so long a time over a bad link. The sleep is the measurement."""
    inventory = lab.inventory(run={"launcher": "direct", "max_restarts": 100})
    run_id = driver.start(lab, inventory, "--", driver.script(lab, WORK, "work.py"))
    lab.hosts[1].delay(200)
    lab.hosts[1].loss(5)
    time.sleep(minutes * 60)
    lab.hosts[1].heal()
    run = driver.runs(lab, inventory)[run_id]
    driver.orch(lab, "kill", run_id, "-i", inventory)
    return int(run["attempt"]) - 1 + (run["state"] != "running")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0)
    asked = parser.parse_args()
    figures: dict[str, Any] = {"hosts": 3}
    with Lab(3) as lab:
        for launcher in ("direct", "torchrun"):
            seconds = [others_gone(lab, launcher == "torchrun") for _ in range(asked.rounds)]
            figures[f"killed worker to the others' end, {launcher}, s"] = seconds
        figures["cut host to its notice, s"] = [loss_noticed(lab) for _ in range(asked.rounds)]
        recoveries = [recovery(lab) for _ in range(max(1, asked.rounds // 2))]
        figures["fresh launch to the first step, s"] = [one[0] for one in recoveries]
        figures["killed worker to the next attempt's first step, s"] = [one[1] for one in recoveries]
        figures["steps done again (a save every 10)"] = [one[2] for one in recoveries]
        figures["last loss equal to the undisturbed run's"] = [one[3] for one in recoveries]
        figures[f"false alarms in {asked.minutes:g} min of 200 ms and 5 %"] = false_alarms(lab, asked.minutes)
    for name, value in figures.items():
        several = value if isinstance(value, list) else [value]
        print(f"{name:52}", *(f"{one:.2f}" if isinstance(one, float) else one for one in several))
    results.write("survival", figures)


if __name__ == "__main__":
    main()
