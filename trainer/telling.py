"""What a training says of its steps: lines of `key:value` that never change form. docs/trainer.md lists them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.samples import Data
from trainer.timing import GradientWait, Watch, peak_flops
from trainer.tracking import Tracker
from trainer.world import World, print_line

PARTS = ("data", "forward", "backward", "comm", "optimizer")
GIB = 2**30


@dataclass
class Teller:
    config: Config
    world: World
    data: Data
    ddp: DistributedDataParallel
    tracker: Tracker | None  # on rank 0
    flops: float | None = None  # of one sample, where they can be counted and the GPU is known
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # of all steps so far, by part
    _told: int = 0  # steps
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.watch = Watch(self.world.device)
        self.peak = peak_flops(self.world.device)  # of a rank's GPU
        self._wait = GradientWait(self.ddp, self.world.device, self.config.log_every)

    def step(self, epoch: int, step: int, loss: float, right: float, norm: float, lr: float) -> float:
        """For all ranks to call: `loss` and `right` are this rank's sums, over its part of the step's samples.

        Returns what a step takes the slowest rank, in seconds: the same on all.
        """
        steps, self._told = self.steps - self._told, self.steps
        mean, comm = self._mean_seconds(steps)
        step_time = sum(mean.values())
        busy = step_time - comm
        rows = self.world.gather_all(loss, right, busy)
        counted = self.config.batch_size * self.data.targets
        slowest = max(range(len(rows)), key=lambda rank: rows[rank][2])
        figures = {
            "loss": sum(row[0] for row in rows) / counted,
            "acc": sum(row[1] for row in rows) / counted,
            "samples/s": self.config.batch_size / step_time,
            "step_time": step_time,
            "lr": lr,
            "grad_norm": norm,
            **{part: mean.get(part, 0.0) for part in PARTS},
            "slowest_rank": slowest,
            "slowest_time": rows[slowest][2],
        } | self._extras(step_time)
        where = f"epoch:{epoch} step:{step}"
        self.world.say(f"{where} {spelled(figures)}")
        if self.tracker:
            self.tracker.keep(step, figures)
        if self.config.log_ranks == "all":
            mine = len(range(self.world.rank, self.config.batch_size, self.world.world_size)) * self.data.targets
            own = {"loss": loss / mine, "acc": right / mine, **{part: mean.get(part, 0.0) for part in PARTS}}
            print_line(f"rank:{self.world.rank} {where} {spelled(own)}")
        return rows[slowest][2]

    def test(self, epoch: int, step: int, loss: float, accuracy: float) -> None:
        self.world.say(f"epoch:{epoch} step:{step} test_loss:{loss:.4f} test_acc:{accuracy:.4f}")
        if self.tracker:
            self.tracker.keep(step, {"test_loss": loss, "test_acc": accuracy})

    def summary(self) -> None:
        """The means over all steps of this start; what is between steps (tests, snapshots) only counts in `seconds`."""
        if not self.steps:
            return
        self._mean_seconds(self.steps - self._told)
        step_time = sum(self.seconds.values()) / self.steps
        figures: dict[str, Any] = {"samples/s": self.config.batch_size / step_time, "step_time": step_time}
        figures |= {part: self.seconds.get(part, 0.0) / self.steps for part in PARTS}
        seconds = time.monotonic() - self._began
        self.world.say(f"summary steps:{self.steps} seconds:{seconds:.1f} {spelled(figures | self._extras(step_time))}")

    def _mean_seconds(self, steps: int) -> tuple[dict[str, float], float]:
        """By part of a step, of the steps since the last time; and those of them spent waiting for gradients."""
        read = self.watch.read()
        read.pop("between", None)
        comm = min(self._wait.read() * steps, read.get("backward", 0.0))
        read["comm"] = read.get("comm", 0.0) + comm
        read["backward"] = read.get("backward", 0.0) - comm
        for name, seconds in read.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        mean = {name: seconds / max(1, steps) for name, seconds in read.items()}
        return mean, mean["comm"]

    def _extras(self, step_time: float) -> dict[str, float]:
        extras = {}
        if not self.data.channels:
            extras["tokens/s"] = self.config.batch_size * self.data.targets / step_time
        if self.peak and self.flops:
            extras["mfu"] = self.flops * self.config.batch_size / step_time / self.peak / self.world.world_size
        if self.world.device.type == "cuda":
            extras["gpu_peak_gib"] = torch.cuda.max_memory_allocated(self.world.device) / GIB
        return extras


FORMS = {"samples/s": ".0f", "tokens/s": ".0f", "lr": ".6f", "slowest_rank": "d", "gpu_peak_gib": ".2f"}


def spelled(figures: dict[str, Any]) -> str:
    return " ".join(f"{name}:{value:{FORMS.get(name, '.4f')}}" for name, value in figures.items())
