"""The speed of the trainer on one GPU, against loops that do nothing else: GPT-2 124M and ResNet-50 on synthetic data.

    python benchmarks/gpu/training.py gpt2|resnet50 FILE

Each variant (eager, compiled) runs all contestants in turn, in blocks of some steps; a ratio is the median over
neighbouring blocks of the speed of the trainer, divided by that of the other. Above 1, the trainer is faster.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from figures import DEVICE, TINY, Figures
from loops import GIB, Bare, Timm, Trainer

from trainer.config import Config, parse
from trainer.dist import World, joined
from trainer.metrics import flops_of, peak_flops
from trainer.place import find

ROUNDS, STEPS = (2, 3) if TINY else (5, 20)
ENDLESS = ("--track=none", "--max-steps=1000000", "--eval-every=1000000", "--save-every=1000000", "--log-every=10")
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
MODELS = {
    "gpt2": ("--model=gpt2", "--context=1024", "--batch-size=32"),
    "resnet50": ("--model=resnet50", "--image-size=224", "--batch-size=256", "--classes=1000"),
}
TINY_MODELS = {
    "gpt2": ("--model=gpt-tiny", "--context=16", "--batch-size=4"),
    "resnet50": (f"--model={'resnet18' if HAS_TORCHVISION else 'digits-cnn'}", "--image-size=32", "--batch-size=4",
                 "--classes=10"),
}  # fmt: skip
COMMON = {
    "gpt2": ("--data=synthetic-tokens", "--optimizer=adamw", "--lr=0.0006", "--weight-decay=0.1", "--grad-clip=1"),
    "resnet50": ("--data=synthetic", "--channels-last"),
}
VARIANTS = {"eager": (), "compiled": ("--compile",)}
GRAPHS = functools.partial(torch.compile, mode="reduce-overhead")  # CUDA graphs
TIMM = {"resnet50": "resnet18" if TINY else "resnet50"}


def main() -> int:
    name, figures = sys.argv[1], Figures(sys.argv[2])
    failed = False
    with joined(DEVICE, find(os.environ)) as world:
        flags = (*(TINY_MODELS if TINY else MODELS)[name], *COMMON[name], "--precision=bf16", *ENDLESS)
        for variant, more in VARIANTS.items():
            if variant in figures:
                continue
            config = parse([*flags, *more, f"--device={DEVICE}", "--out=unused"])
            try:
                figures.add(variant, measure(config, world, TIMM.get(name)))
            except Exception as error:  # noqa: BLE001  the other variant counts too
                traceback.print_exc()
                figures.add(f"{variant}_error", " ".join(str(error).split())[:500])
                failed = True
            gc.collect()
            torch._dynamo.reset()
            if world.device.type == "cuda":
                torch.cuda.empty_cache()
    sys.stdout.flush()
    os._exit(1 if failed else 0)


def measure(config: Config, world: World, timm_name: str | None) -> dict[str, Any]:
    contestants: dict[str, Any] = {}
    static: dict[str, float] = {}

    def enter(name: str, make: Callable[[], Any]) -> None:
        before = allocated(world)
        contestants[name] = make()
        contestants[name].block(3)  # compiles, and chooses the algorithms of the convolutions
        static[name] = allocated(world) - before

    enter("trainer", lambda: Trainer(config, world))
    trainer = contestants["trainer"]
    data, batch = trainer.training.data, trainer.first_batch()
    compilers = [torch.compile] if config.compile else []
    enter("bare loop", lambda: Bare(config, world, data, batch, *compilers))
    if config.compile and world.device.type == "cuda":
        enter("bare loop, CUDA graphs", lambda: Bare(config, world, data, batch, GRAPHS))
    if timm_name and importlib.util.find_spec("timm"):
        enter("timm", lambda: Timm(config, world, batch, timm_name))

    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    peaks: dict[str, float] = dict.fromkeys(contestants, 0.0)
    for number in range(ROUNDS):
        for name in sorted(contestants, reverse=number % 2 == 1):
            before = allocated(world, reset=True)
            seconds[name].append(contestants[name].block(STEPS) / STEPS)
            peaks[name] = max(peaks[name], peak(world) - before + static[name])
    flops = flops_of(trainer.training.on_meta, batch.inputs)
    return {
        "config": {name: value for name, value in config.as_dict().items() if value != getattr(Config(), name)},
        "contestants": {
            name: report(config, trainer, each, peaks[name], flops, peak_flops(world.device))
            for name, each in seconds.items()
        },
        "speed_of_trainer_to": {
            name: median(other / own for other, own in zip(each, seconds["trainer"], strict=True))
            for name, each in seconds.items()
            if name != "trainer"
        },
    }


def report(
    config: Config, trainer: Trainer, seconds: list[float], peak_gib: float, flops: float | None, most: float | None
) -> dict[str, Any]:
    step = median(seconds)
    return {
        "seconds_per_step": seconds,
        "samples_per_second": config.batch_size / step,
        "tokens_per_second": config.batch_size * trainer.training.data.targets / step,
        "mfu": flops * config.batch_size / step / most if flops and most else None,
        "peak_gib": peak_gib,
    }


def allocated(world: World, reset: bool = False) -> float:
    """GiB of GPU memory."""
    if world.device.type != "cuda":
        return 0.0
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / GIB


def peak(world: World) -> float:
    return torch.cuda.max_memory_allocated() / GIB if world.device.type == "cuda" else 0.0


if __name__ == "__main__":
    sys.exit(main())
