"""What the trainer costs above a bare loop, and how long a snapshot holds up a step.

Two ranks on this machine, one model. The bare loop does nothing but forward, backward with DDP's all-reduce, and the
optimizer's step, on one batch that lies ready; the trainer's is `train`, with its log every ten steps. Blocks of both
in turn, in the same processes; a step's time is from the fetching of a batch to that of the next, so that nothing
between is left out. The ratio is that of the median steps of two neighbouring blocks; that of their means has the
logged steps in it as well. Short blocks and many of them: on a machine whose speed wanders, neighbours are alike.

    python benchmarks/trainer_overhead.py [--rounds 36] [--steps 10]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

MODELS = {
    "digits-cnn": ["--batch-size=128"],
    "gpt-tiny": ["--model=gpt-tiny", "--data=synthetic-tokens", "--context=64", "--batch-size=8", "--optimizer=adamw"],
}
OFTEN = {"digits-cnn": 10}  # times the rounds: its steps are so short that else it is looked at for seconds only
SNAPSHOTS = 12
# Of both contestants: tensors of more than 32 MiB would go back to the system in every step and be faulted in anew, 20
# to 50 thousand pages a step of the GPT, at random: a third of its time, and more scatter than what is looked for.
KEEPING_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


def as_a_rank(rounds: int, steps: int) -> None:
    """Rank 0 prints `figures {JSON}`."""
    import os

    from trainer.config import parse
    from trainer.dist import joined
    from trainer.place import find

    with joined("cpu", find(os.environ)) as world:
        figures = {}
        for name, flags in MODELS.items():
            config = parse([*flags, "--track=none", "--epochs=1000000", f"--out={os.getpid()}"])
            more = OFTEN.get(name, 1)
            figures[name] = {"step": blocks(config, world, more * rounds, steps), "snapshot": snapshots(config, world)}
        world.print("figures " + json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


def blocks(config, world, rounds: int, steps: int):  # type: ignore[no-untyped-def]
    """Seconds of every step, of the bare loop and of ours; a block of one, then a block of the other."""
    from trainer.loop import setup, warm_up
    from trainer.metrics import Log

    # the same for both: two of them lie elsewhere in memory, and one may be some percent faster for the whole run
    training = setup(config, world, None)
    batch = next(warm_up(training, Log(config, world, training.data, training.wrapped, None)))
    seconds: dict[str, list[list[float]]] = {"bare": [], "ours": []}
    for number in range(rounds + 1):
        contestants = {"bare": lambda: bare_block(training, batch, steps), "ours": lambda: our_block(training, steps)}
        for name in sorted(contestants, reverse=number % 2 == 1):
            world.gather(0)
            took = contestants[name]()
            if number:
                seconds[name].append(took)
    return seconds


def bare_block(training, batch, steps: int) -> list[float]:  # type: ignore[no-untyped-def]
    from torch.nn.functional import cross_entropy

    inputs, targets = batch
    times = []
    for _ in range(steps):
        times.append(time.perf_counter())
        cross_entropy(training.wrapped(inputs).flatten(0, -2), targets.flatten()).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    return [after - before for before, after in itertools.pairwise(times)]


class Enough(Exception):
    """The block is over."""


@dataclass
class Stamped:
    """A split that notes when it is asked for a batch, and that ends a block."""

    split: object
    steps: int
    times: list[float]

    @property
    def size(self) -> int:
        return self.split.size  # type: ignore[attr-defined,no-any-return]

    def batches(self, pieces: Iterable[object]) -> Iterator[object]:
        for batch in self.split.batches(pieces):  # type: ignore[attr-defined]
            yield batch
            self.times.append(time.perf_counter())
            if len(self.times) == self.steps:
                raise Enough


def our_block(training, steps: int) -> list[float]:  # type: ignore[no-untyped-def]
    from trainer.loop import train
    from trainer.metrics import Log

    times: list[float] = []
    # what is done at an epoch's end is not of a step
    assert steps < training.sampling.steps_per_epoch
    training = replace(training, data=replace(training.data, train=Stamped(training.data.train, steps, times)))
    log = Log(training.config, training.world, training.data, training.wrapped, None)
    with contextlib.suppress(Enough), contextlib.redirect_stdout(io.StringIO()):
        train(training, log, None, None)
    return [after - before for before, after in itertools.pairwise(times)]


def snapshots(config, world):  # type: ignore[no-untyped-def]
    """Seconds that `save` holds up a step, and that copying the same state takes, in turn."""
    from trainer.checkpoint import FileWriter, on_host
    from trainer.loop import setup, train_step, warm_up
    from trainer.metrics import Log

    training = setup(config, world, None)
    log = Log(config, world, training.data, training.wrapped, None)
    train_step(training, log, warm_up(training, log), 0, logged=False)  # so that the optimizer has a state
    state = {"step": 0, "model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    seconds: dict[str, list[float]] = {"copy": [], "save": []}
    if world.rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            writer = FileWriter(Path(folder), keep=2)
            copy = on_host(state)
            for number in range(1, SNAPSHOTS + 1):
                began = time.perf_counter()
                on_host(state, copy)
                copied = time.perf_counter()
                writer.save({**state, "step": number})
                saved = time.perf_counter()
                if number > 1:  # the first one takes the memory from the system
                    seconds["copy"].append(copied - began)
                    seconds["save"].append(saved - copied)
                while not list(Path(folder).glob(f"step-{number:09d}-*")):
                    time.sleep(0.01)
            writer.close()
    world.gather(0)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        as_a_rank(asked.rounds, asked.steps)
        return
    import results
    from e2e import trainer_ranks
    from e2e.trainer_ranks import outputs_of, started

    trainer_ranks.LIMIT = 3600  # s

    with tempfile.TemporaryDirectory() as folder:
        flags = ("--rank", f"--rounds={asked.rounds}", f"--steps={asked.steps}")
        with started(2, Path(folder), str(Path(__file__).resolve()), *flags, **KEEPING_MEMORY) as ranks:
            output, _ = outputs_of(ranks)
    lines = [line for line in output.splitlines() if line.startswith("figures ")]
    if not lines:
        sys.exit(output)
    figures = json.loads(lines[0].removeprefix("figures "))
    kept: dict[str, dict[str, float | list[float]]] = {}
    for model, measured in figures.items():
        steps, snapshots = measured["step"], measured["snapshot"]
        kept[model] = {f"step_{name}_medians_s": [median(block) for block in blocks] for name, blocks in steps.items()}
        kept[model] |= {f"step_{name}_means_s": [fmean(block) for block in blocks] for name, blocks in steps.items()}
        kept[model] |= {f"snapshot_{name}_s": each for name, each in snapshots.items()}
        for what, ours, theirs in (
            ("step, median", "step_ours_medians_s", "step_bare_medians_s"),
            ("step, mean", "step_ours_means_s", "step_bare_means_s"),
            ("snapshot", "snapshot_save_s", "snapshot_copy_s"),
        ):
            one, other = kept[model][ours], kept[model][theirs]
            ratio = kept[model][f"{what} ratio"] = median(a / b for a, b in zip(one, other, strict=True))
            print(
                f"{model:12} {what:13} {1000 * median(other):8.3f} ms, ours {1000 * median(one):8.3f} ms: {ratio:.3f}"
            )
    figures = kept
    results.write("trainer_overhead", {"ranks": 2, "figures": figures})


if __name__ == "__main__":
    main()
