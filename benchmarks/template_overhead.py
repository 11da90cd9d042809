"""What a step of trainer/train.py, the file that people copy, costs above a loop written by hand.

Two ranks on this machine train the CNN on the digits. Both loops load the same samples with DataLoader, and their
batch, model and optimizer are equal. The one by hand has a DistributedSampler, forward, backward with DDP's all-reduce,
clipping and the optimizer's step; train.py seeds each sample, votes on signals, sets the learning rate and logs
besides. Blocks of both in turn, in the same processes. The ratio is that of the median steps of neighbouring blocks.

    python benchmarks/template_overhead.py [--rounds 60] [--steps 40]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

BATCH = 128  # of all ranks together
CLIP = 1.0


class Enough(Exception):
    """The block is over."""


def as_a_rank(rounds: int, steps: int) -> None:
    """Rank 0 prints `figures {JSON}`."""
    import torch
    from torch.utils.data import TensorDataset

    from trainer import train as template
    from trainer.config import parse
    from trainer.datasets.builtin import DIGITS, csv
    from trainer.dist import joined
    from trainer.model import digits_cnn
    from trainer.place import find

    split: Any = csv(parse(["--track=none"]), torch.device("cpu"), DIGITS).train
    dataset = TensorDataset(split.inputs, split.targets)
    template.make_model = lambda: digits_cnn(1, 10)
    template.datasets = lambda: (dataset, dataset)
    with joined("cpu", find(os.environ)) as world, tempfile.TemporaryDirectory() as folder:
        contestants: dict[str, Callable[[], list[float]]] = {
            "hand": lambda: by_hand(dataset, template, world, steps),
            "template": lambda: by_template(template, world, steps, folder),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds + 1):
            for name in sorted(contestants, reverse=number % 2 == 1):
                world.gather(0)
                took = contestants[name]()
                if number:
                    seconds[name].append(median(took))
        world.print("figures " + json.dumps(seconds))
    sys.stdout.flush()
    os._exit(0)


def by_hand(dataset: Any, template: Any, world: Any, steps: int) -> list[float]:
    from torch import nn
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    model = template.make_model()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = template.make_optimizer(model, template.Config(), world.device)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=BATCH // world.world_size, sampler=sampler, drop_last=True)
    times = []
    for inputs, targets in itertools.chain.from_iterable(itertools.repeat(loader)):
        cross_entropy(wrapped(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
        if len(times) == steps:
            return [after - before for before, after in itertools.pairwise(times[2:])]
    raise AssertionError("the loader has no end")


def by_template(template: Any, world: Any, steps: int, folder: str) -> list[float]:
    times: list[float] = []
    learning_rate = template.learning_rate

    def stamped(*arguments: Any) -> float:  # called once per step
        times.append(time.perf_counter())
        if len(times) > steps * 2:  # twice a step: of two groups of parameters
            raise Enough
        return float(learning_rate(*arguments))

    never = 10**9
    limits = {"max_steps": never, "eval_every": never, "save_every": never}
    config = template.Config(batch_size=BATCH, grad_clip=CLIP, out=folder, **limits)
    template.learning_rate = stamped
    try:
        with contextlib.suppress(Enough), contextlib.redirect_stdout(io.StringIO()):
            template.train(config, world)
    finally:
        template.learning_rate = learning_rate
    return [after - before for before, after in itertools.pairwise(times[4::2])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        as_a_rank(asked.rounds, asked.steps)
        return
    import results
    from e2e import trainer_ranks
    from e2e.trainer_ranks import outputs_of, started

    trainer_ranks.LIMIT = 1800  # s
    flags = ("--rank", f"--rounds={asked.rounds}", f"--steps={asked.steps}")
    with (
        tempfile.TemporaryDirectory() as folder,
        started(2, Path(folder), str(Path(__file__).resolve()), *flags) as ranks,
    ):
        output, _ = outputs_of(ranks)
    lines = [line for line in output.splitlines() if line.startswith("figures ")]
    if not lines:
        sys.exit(output)
    figures = json.loads(lines[0].removeprefix("figures "))
    ratio = median(ours / hand for ours, hand in zip(figures["template"], figures["hand"], strict=True))
    times = {name: 1000 * median(each) for name, each in figures.items()}
    print(f"by hand {times['hand']:.3f} ms, train.py {times['template']:.3f} ms: {ratio:.3f}")
    medians = {f"step_{name}_medians_s": each for name, each in figures.items()}
    results.write("template_overhead", {"ranks": 2, "figures": {**medians, "step ratio": ratio}})


if __name__ == "__main__":
    main()
