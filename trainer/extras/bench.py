"""Which part limits a training: the computing alone, the data alone, the all-reduce alone, against all together."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from trainer.checkpoint import make_folder
from trainer.config import Config
from trainer.datasets.workers import AHEAD
from trainer.dist import World
from trainer.loop import Training, forward, setup, train_step, warm_up
from trainer.metrics import Log, flops_of
from trainer.parallel import keep_gradients_local

ROUNDS = 5
WARM_UP = 3  # steps


def bench(config: Config, world: World) -> None:
    """Prints one line, `bench ` and JSON, and writes it to bench.json in --out. Nothing is saved of the model."""
    world.print(" ".join(["config", *(f"{key}:{value}" for key, value in config.as_dict().items())]))
    with world.fail_together():
        out = make_folder(config.out)
    training = setup(config, world, None)
    measured = measure(training)
    world.print("bench " + json.dumps(measured))
    if world.rank == 0:
        Path(out / "bench.json").write_text(json.dumps(measured, indent=2) + "\n")


def measure(training: Training) -> dict[str, Any]:
    """Rounds of all contestants in turn, as a machine is not equally fast all the time; the median of each counts."""
    config, world, data = training.config, training.world, training.data
    log = Log(config, world, data, training.wrapped, None)
    batch = next(warm_up(training, log))
    gradients = sum(each.numel() for each in training.model.parameters() if each.requires_grad)
    flat = torch.zeros(gradients, device=world.device)
    numbers = iter(range(10**9))

    def compute() -> None:
        with keep_gradients_local(training.wrapped):
            for _ in range(config.grad_accum_steps):
                forward(training, training.wrapped, batch)[1].backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    def allreduce() -> None:
        dist.all_reduce(flat)

    def together() -> None:
        train_step(training, log, endless, next(numbers), logged=False)

    def data_alone() -> None:
        for _ in range(config.grad_accum_steps):
            next(endless)

    endless = data.train.batches(training.sampling.steps(0, 10**9))
    for group in training.optimizer.param_groups:
        group["lr"] = 0.0  # so that, however long this takes, the numbers stay numbers
    contestants = {"compute": compute, "allreduce": allreduce, "data": data_alone, "together": together}
    steps = {name: steps_for(config.bench_seconds, each, world) for name, each in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    in_workers = config.data == "folder" or ":" in config.data
    ready = config.workers * AHEAD if in_workers else 0  # micro-batches that would cost nothing
    for _ in range(ROUNDS):
        for name, each in contestants.items():
            for _ in range(ready if name == "data" else 0):
                next(endless)
            seconds[name].append(timed(each, steps[name], world))
            log.timer.read()
    return report(training, seconds, gradients * 4, flops_of(training.model, batch.inputs), log.peak)


def steps_for(seconds: float, what: Callable[[], None], world: World) -> int:
    """So many that they take about `seconds`: the same on all ranks."""
    timed(what, WARM_UP, world)
    once = timed(what, WARM_UP, world)
    return max(3, min(10000, math.ceil(seconds / max(once, 1e-6))))


def timed(what: Callable[[], None], steps: int, world: World) -> float:
    """Seconds a step of the slowest rank."""
    cuda = world.device.type == "cuda"
    world.gather(0)
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        what()
    if cuda:
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    return max(row[0] for row in world.gather_all(took)) / steps


def report(
    training: Training, seconds: dict[str, list[float]], sent: int, flops: float | None, peak: float | None
) -> dict[str, Any]:
    config, world = training.config, training.world
    step = {name: median(each) for name, each in seconds.items()}
    alone = {name: step[name] for name in ("compute", "data", "allreduce")}
    if world.world_size == 1:
        del alone["allreduce"]
    gpu = torch.cuda.get_device_name() if world.device.type == "cuda" else None
    return {
        "world_size": world.world_size,
        "device": world.device.type,
        "gpu": gpu,
        "torch": str(torch.__version__),
        "model": config.model,
        "data": config.data,
        "batch_size": config.batch_size,
        "seconds_per_step": step,
        "seconds_of_each_round": seconds,
        "samples_per_second": {name: config.batch_size / step[name] for name in ("compute", "data", "together")},
        "allreduce_bytes": sent,
        "allreduce_bytes_per_second": sent / step["allreduce"],
        "mfu": config.batch_size * flops / step["together"] / peak / world.world_size if flops and peak else None,
        "limit": max(alone, key=lambda name: alone[name]),
    }
