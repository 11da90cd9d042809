"""ResNet-18 on two hosts of the lab with 100 Mbit/s between them: a step, plain and by what helps on slow networks.

Synthetic images, small ones, so that computing takes little of a step. Every contestant trains in the same processes,
in turn; a step's time is the mean over the steps after the warm-up, for local SGD over whole rounds of its averaging.

    python benchmarks/slow_link.py [--rate 100mbit] [--rounds 2] [--steps 8]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab
from lab_ranks import ROOT, outputs_of_ranks

EVERY = 16  # steps between averages of local SGD
AFTER = 2  # exact steps before PowerSGD and local SGD begin
CONTESTANTS = {
    "plain DDP": [],
    "--compress fp16": ["--compress=fp16"],
    "--compress bf16": ["--compress=bf16"],
    "--compress powersgd": ["--compress=powersgd"],
    f"--local-sgd {EVERY}": [f"--local-sgd={EVERY}"],
}


def flags(extra: list[str], number: int, steps: int) -> list[str]:
    if any("local" in flag for flag in extra):
        steps = EVERY
    batch = 4  # two for each rank: batch norm refuses one
    total = AFTER + (EVERY - AFTER) + steps if steps == EVERY else AFTER + steps
    return [
        "--model=resnet18:resnet18", "--data=synthetic", "--image-size=32", f"--batch-size={batch}", "--epochs=1",
        f"--samples={batch * total}", f"--log-every={1 if steps != EVERY else EVERY}", f"--compress-after={AFTER}",
        "--lr=0.001", "--track=none", f"--out=out-{number}", *extra,
    ]  # fmt: skip


def mean_of(key: str, output: str, steps: int) -> float:
    """Seconds of the steps behind the warm-up; of local SGD, of its last round."""
    times = [float(each) for each in re.findall(rf"(?m)^epoch:\d+ step:\d+ loss.* {key}:(\S+)", output)]
    return times[-1] if len(times) <= 3 else sum(times[-steps:]) / steps


def run(lab: Lab, argvs: list[list[str]]) -> str:
    """What rank 0 said."""
    return outputs_of_ranks(lab, str(ROOT / "tests/e2e/many_trainings.py"), json.dumps(argvs))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="of each direction, in tc's words")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="of each contestant in a round, but for local SGD")
    asked = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    waiting: dict[str, list[float]] = {name: [] for name in CONTESTANTS}  # of these, for what the others send
    turns = [name for _ in range(asked.rounds) for name in CONTESTANTS]
    with Lab(2) as lab:
        for host in lab.hosts:
            host.rate(asked.rate)
        argvs = [flags(CONTESTANTS[name], number, asked.steps) for number, name in enumerate(turns)]
        outputs = re.split(r"(?m)^training \d+\n", run(lab, argvs))[1:]
    for name, output in zip(turns, outputs, strict=True):
        if "refused" in output:
            print(f"{name}: refused by this torch's gloo")
            del seconds[name], waiting[name]
        else:
            seconds[name].append(mean_of("step_time", output, asked.steps))
            waiting[name].append(mean_of("comm", output, asked.steps))
    print(results.table(seconds, "plain DDP"))
    faster = {name: median(seconds["plain DDP"]) / median(each) for name, each in seconds.items()}
    for name, times in faster.items():
        print(f"{name:28} {times:.2f} x as fast as plain DDP, waiting {median(waiting[name]):.2f} s of a step")
    results.write(
        "slow_link",
        {
            "rate": asked.rate,
            "load_average": os.getloadavg()[1],  # of five minutes: others' work makes computing slow, and not the link
            "seconds_per_step": seconds,
            "seconds_waiting_per_step": waiting,
            "times_as_fast_as_plain": faster,
        },
    )


if __name__ == "__main__":
    main()
