"""Does a compiled model still send its gradients while backward computes? A step of an MLP on two hosts of the lab.

The network between the hosts is so slow that sending takes about as long as computing. With buckets of 5 MB, DDP sends
the first gradients while the rest are computed; with one bucket for all, it cannot. The trainer compiles the model and
then wraps it in DDP, so that torch cuts the graph at the buckets. Contestants in turn, in the same processes.

  computing   a step in DDP's no_sync()
  hidden      seconds of a step that one bucket takes longer, compiled in comparison with eager

    python benchmarks/compiled_overlap.py [--rate 300mbit] [--rounds 5] [--steps 4]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

FLAGS = [
    "--model=compiled_overlap:mlp", "--data=synthetic", "--image-size=8", "--batch-size=2048", "--track=none",
    "--out=out",
]  # fmt: skip
ONE_BUCKET = "--bucket-mb=1000"
CONTESTANTS = {
    "eager": ["--bucket-mb=5"],
    "eager, one bucket": [ONE_BUCKET],
    "compiled": ["--compile", "--bucket-mb=5"],
    "compiled, one bucket": ["--compile", ONE_BUCKET],
}


def mlp(classes: int):  # type: ignore[no-untyped-def]
    """44 MB of gradients, in ten layers of equal size."""
    from torch import nn

    layers = [layer for _ in range(10) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1024), nn.ReLU(), *layers, nn.Linear(1024, classes))


def as_a_rank(rounds: int, steps: int) -> None:
    """Rank 0 prints `figures {JSON}`: seconds per step of each contestant, one number per round."""
    import torch

    from trainer.config import parse
    from trainer.dist import joined
    from trainer.loop import setup, warm_up
    from trainer.metrics import Log
    from trainer.place import find

    torch.set_num_threads(1)
    with joined("cpu", find(os.environ)) as world:
        contestants = {}
        for name, flags in CONTESTANTS.items():
            training = setup(parse([*FLAGS, *flags]), world, None)
            batch = next(warm_up(training, Log(training.config, world, training.data, training.wrapped, None)))
            contestants[name] = (training, batch, contextlib.nullcontext)
            step(*contestants[name])
        training, batch, _ = contestants["compiled"]
        contestants["computing"] = (training, batch, training.wrapped.no_sync)
        step(*contestants["computing"])
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, contestant in contestants.items():
                world.gather(0)
                began = time.perf_counter()
                for _ in range(steps):
                    step(*contestant)
                world.gather(0)
                seconds[name].append((time.perf_counter() - began) / steps)
        size = sum(parameter.numel() for parameter in training.model.parameters())
        world.print("figures " + json.dumps({"megabytes_sent": 4 * size / 1e6, "seconds_per_step": seconds}))
    sys.stdout.flush()
    os._exit(0)


def step(training, batch, sending) -> None:  # type: ignore[no-untyped-def]
    from torch.nn.functional import cross_entropy

    inputs, targets = batch
    with sending():
        cross_entropy(training.wrapped(inputs).flatten(0, -2), targets.flatten()).backward()
    training.optimizer.zero_grad(set_to_none=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="300mbit", help="of each direction, in tc's words")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of each contestant in a round")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        as_a_rank(asked.rounds, asked.steps)
        return
    import results
    from lab.lab import Lab
    from lab_ranks import outputs_of_ranks

    with Lab(2) as lab:
        for host in lab.hosts:
            host.rate(asked.rate)
        flags = ["--rank", f"--rounds={asked.rounds}", f"--steps={asked.steps}"]
        output = outputs_of_ranks(lab, str(Path(__file__).resolve()), *flags)[0]
    lines = [line for line in output.splitlines() if line.startswith("figures ")]
    figures = json.loads(lines[0].removeprefix("figures "))
    seconds = figures["seconds_per_step"]
    print(results.table(seconds, "computing"))
    hidden = {}
    for name in ("eager", "compiled"):
        pairs = zip(seconds[f"{name}, one bucket"], seconds[name], strict=True)
        hidden[name] = median(one - other for one, other in pairs)
        print(f"{name:28} {hidden[name]:.2f} s of sending are hidden behind backward")
    results.write("compiled_overlap", {"rate": asked.rate, **figures, "seconds_hidden": hidden})


if __name__ == "__main__":
    main()
