"""Whether a run outlasts cuts of the network and a reboot of each of its hosts, and how soon it trains again.

Three hosts of the lab without a spare, the bundled trainer under torchrun, `up` attached. In each run, one host is cut
off for so many seconds, or loses its power and is booted again. The last loss is compared with that of an undisturbed
run, and the time from the end of the fault to the first step of the next attempt with that from `up` to the first step.

    python benchmarks/outages.py [--modes stop elect] [--cuts 5 15 60 300] [--hosts head other] [--limit 3]
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
from chaos.trial import Trial
from lab.lab import Lab
from lab.waiting import wait_until

TRAINER = ["--epochs", "12", "--save-every", "10", "--log-every", "1", "--track", "none", "--seed", "7"]
VICTIMS = {"head": 0, "other": 2}
STARTS = 120.0  # s at most to a first step
ENDS = 300.0  # s at most to the end
NOTICED = 5.0  # s: a cut that is no longer must go by unnoticed
OFF = 15.0  # s that a host is without power


def losses(output: str) -> dict[int, str]:
    """The loss of each step, as the last attempt that took it printed it."""
    return {int(step): loss for step, loss in re.findall(r"step:(\d+)\b.*?\bloss:([\d.]+)", output)}


def first_step(run: Trial, attempt: int) -> float:
    """When it is printed."""

    def taken() -> bool:
        _, found, after = run.output.partition(f"attempt {attempt} on ")
        return bool(found) and "step:" in after

    wait_until(taken, STARTS, f"the first step of attempt {attempt}")
    return time.monotonic()


def strike(run: Trial, victim: int, cut: float | None) -> None:
    """`cut`: s without a network; None: without power. Returns at its end."""
    host = run.lab.hosts[victim]
    if cut is None:
        host.crash()
        run.pass_time(OFF)
        host.boot()
    else:
        host.cut()
        run.pass_time(cut)
        host.heal()


def measure(lab: Lab, mode: str, victim: str | None, cut: float | None) -> dict[str, Any]:
    run_options = {"max_restarts": 3, "head_lost": mode, "args": TRAINER}
    inventory = lab.inventory(cluster_addresses=True, run=run_options)
    began = time.monotonic()
    fault = "none" if victim is None else f"power off for {OFF:g} s" if cut is None else f"cut of {cut:g} s"
    found: dict[str, Any] = {"victim": victim, "fault": fault}
    with Trial(lab, inventory) as run:
        found["launch_s"] = round(first_step(run, 1) - began, 1)
        if victim is not None:
            run.wait_for("step:40 ", timeout=300)
            strike(run, VICTIMS[victim], cut)
            ended = time.monotonic()
            if cut is None or cut > NOTICED:
                found["resumed_s"] = round(first_step(run, 2) - ended, 1)
        found["exit_code"] = run.ended(ENDS)
        found["attempts"] = run.fact()["attempt"]
        last = max(losses(run.output).items())
        found["last_step"], found["last_loss"] = last
    lab.reset()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["stop", "elect"], help="values of run.head_lost")
    parser.add_argument("--cuts", nargs="+", type=float, default=[5, 15, 60, 300])
    parser.add_argument("--hosts", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    parser.add_argument("--limit", type=float, default=3.0, help="seconds that it may take longer than a launch")
    asked = parser.parse_args()
    figures: dict[str, list[dict[str, Any]]] = {}
    bad = 0
    with Lab(3) as lab:
        for mode in asked.modes:
            undisturbed = measure(lab, mode, None, None)
            figures[mode] = [undisturbed]
            for cut in [*asked.cuts, None]:
                for victim in asked.hosts:
                    found = measure(lab, mode, victim, cut)
                    figures[mode].append(found)
                    resumed = found.get("resumed_s", 0.0)
                    is_slow = resumed > found["launch_s"] + asked.limit
                    found["same_loss"] = all(found[key] == undisturbed[key] for key in ("last_step", "last_loss"))
                    bad += is_slow or not found["same_loss"] or found["exit_code"] != 0
                    print(f"head_lost: {mode:5}  {found}", flush=True)
    results.write("outages", {"hosts": 3, "head_lost": figures})
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
