"""What a run prints and records: lines of `key:value` that never change form (docs/trainer.md lists them)."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import secrets
import socket
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from trainer.config import Config, ConfigError
from trainer.data import Data, Sampling
from trainer.dist import World, print_line
from trainer.optim import peak_learning_rate

PARTS = ("data", "forward", "backward", "comm", "optimizer")  # of a step's time
GIB = 2**30

# TFLOP/s of dense matrices in 16 bits, from NVIDIA's data sheets; by a word of the GPU's name
PEAKS = {
    "GB200": 2500, "B200": 2250, "GH200": 989, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H800": 989,
    "A100": 312, "A800": 312, "A40": 149.7, "A30": 165, "A10G": 70, "A10": 125, "L40S": 362, "L40": 181, "L4": 121,
    "V100S": 130, "V100": 125, "T4": 65, "RTX 5090": 209.5, "RTX 4090": 165.2, "RTX 3090": 71,
}  # fmt: skip


@dataclass
class Log:
    config: Config
    world: World
    data: Data
    wrapped: nn.Module
    tracker: Tracker | None  # on rank 0
    flops: float | None = None  # of one sample; None: unknown
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # of all steps so far, by part
    _logged: int = 0  # steps
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.timer = Timer(self.world.device)
        self.peak = peak_flops(self.world.device)  # of a rank's GPU
        self._wait = GradientWait(self.wrapped, self.world.device, self.config.log_every)

    def count_flops(self, on_meta: nn.Module | None, inputs: Tensor) -> None:
        if self.peak:
            self.flops = flops_of(on_meta, inputs)

    def step(self, epoch: int, step: int, loss: float, correct: float, norm: float, lr: float) -> float:
        """For all ranks to call: `loss` and `correct` are sums over this rank's samples of the step.

        Returns the seconds per step of the slowest rank: the same number on all ranks.
        """
        steps, self._logged = self.steps - self._logged, self.steps
        mean, comm = self._mean_seconds(steps)
        step_time = sum(mean.values())
        busy = step_time - comm
        rows = self.world.gather_all(loss, correct, busy)
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
        self.world.print(f"{where} {format_figures(figures)}")
        self.record(step, figures)
        if self.config.log_ranks == "all":
            mine = len(range(self.world.rank, self.config.batch_size, self.world.world_size)) * self.data.targets
            own = {"loss": loss / mine, "acc": correct / mine, **{part: mean.get(part, 0.0) for part in PARTS}}
            print_line(f"rank:{self.world.rank} {where} {format_figures(own)}")
        return rows[slowest][2]

    def test(self, epoch: int, step: int, loss: float, accuracy: float) -> None:
        self.world.print(f"epoch:{epoch} step:{step} test_loss:{loss:.4f} test_acc:{accuracy:.4f}")
        self.record(step, {"test_loss": loss, "test_acc": accuracy})

    def record(self, step: int, figures: dict[str, Any]) -> None:
        if self.tracker:
            self.tracker.write(step, figures)

    def close(self) -> None:
        if self.tracker:
            self.tracker.close()

    def summary(self) -> None:
        """Print the means over all steps since this start. Tests and snapshots count in `seconds` only."""
        if not self.steps:
            return
        self._mean_seconds(self.steps - self._logged)
        step_time = sum(self.seconds.values()) / self.steps
        figures: dict[str, Any] = {"samples/s": self.config.batch_size / step_time, "step_time": step_time}
        figures |= {part: self.seconds.get(part, 0.0) / self.steps for part in PARTS}
        seconds = time.monotonic() - self._began
        self.world.print(
            f"summary steps:{self.steps} seconds:{seconds:.1f} {format_figures(figures | self._extras(step_time))}"
        )

    def _mean_seconds(self, steps: int) -> tuple[dict[str, float], float]:
        """Seconds per step since the last call, by part, and how many of them were spent waiting for gradients."""
        seconds_by_part = self.timer.read()
        seconds_by_part.pop("between", None)
        comm = min(self._wait.read() * steps, seconds_by_part.get("backward", 0.0))
        seconds_by_part["comm"] = seconds_by_part.get("comm", 0.0) + comm
        seconds_by_part["backward"] = seconds_by_part.get("backward", 0.0) - comm
        for name, seconds in seconds_by_part.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        mean = {name: seconds / max(1, steps) for name, seconds in seconds_by_part.items()}
        return mean, mean["comm"]

    def _extras(self, step_time: float) -> dict[str, float]:
        extras = {}
        if self.data.targets > 1:
            extras["tokens/s"] = self.config.batch_size * self.data.targets / step_time
        if self.peak and self.flops:
            extras["mfu"] = self.flops * self.config.batch_size / step_time / self.peak / self.world.world_size
        if self.world.device.type == "cuda":
            extras["gpu_peak_gib"] = torch.cuda.max_memory_allocated(self.world.device) / GIB
        return extras


FORMS = {"samples/s": ".0f", "tokens/s": ".0f", "lr": ".6f", "slowest_rank": "d", "gpu_peak_gib": ".2f"}


def format_figures(figures: dict[str, Any]) -> str:
    return " ".join(f"{name}:{value:{FORMS.get(name, '.4f')}}" for name, value in figures.items())


def print_plan(config: Config, world: World, data: Data, sampling: Sampling, model: nn.Module) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    left_out = data.train.size % config.batch_size
    world.print(
        f"data train:{data.train.size} test:{data.test.size} classes:{data.classes} parameters:{parameters} "
        f"steps_per_epoch:{sampling.steps_per_epoch} left_out:{left_out}"
    )
    world.print(
        f"optimizer name:{config.optimizer} lr:{peak_learning_rate(config):.6f} given_lr:{config.lr} "
        f"batch_size:{config.batch_size} lr_batch:{config.lr_batch or config.batch_size}"
    )


class NotFiniteError(Exception):
    """A loss was not finite: raised on all ranks at once. Its text is that of `rank`, the first that had one."""

    def __init__(self, reason: str, rank: int) -> None:
        super().__init__(reason)
        self.rank = rank


def check_finite(world: World, sampling: Sampling, step: int, unchecked: list[Tensor]) -> None:
    """Raise NotFiniteError if a loss was not finite; name the first step and rank that had one, and its samples.

    `unchecked`: the losses of this rank up to `step` since the last call; it is emptied. One step later, the gradients
    have carried the error to all ranks, so only the first one tells where it came from.
    """
    bad = torch.stack(unchecked).isfinite().logical_not().nonzero().flatten().tolist() if unchecked else []
    first = step - len(unchecked) + 1
    unchecked.clear()
    steps = world.gather(first + bad[0] if bad else -1)
    bad_steps = [step for step in steps if step >= 0]
    if bad_steps:
        step, rank = min(bad_steps), steps.index(min(bad_steps))
        samples = ",".join(map(str, sampling.mine(step - 1).tolist()))
        raise NotFiniteError(
            f"{socket.gethostname()}: the loss is not finite at step:{step} rank:{rank} samples:{samples}; "
            "a lower --lr, --grad-clip 1 or --precision bf16 may help, or look at these samples; "
            "the newest snapshot is from before",
            rank,
        )


class Timer:
    """Adds up the seconds between laps, by name. On a GPU it records events, which does not wait for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Give the time since the last lap this name."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append((name, event))
        else:
            now = time.perf_counter()
            self._seconds[name] += now - self._last
            self._last = now

    def read(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        if self._events:
            self._events[-1][1].synchronize()
            for (_, before), (name, after) in zip(self._events, self._events[1:], strict=False):
                self._seconds[name] += before.elapsed_time(after) / 1000
            self._events = self._events[-1:]
        read, self._seconds = self._seconds, defaultdict(float)
        return read


class GradientWait:
    """The part of backward that only waits for gradients to arrive.

    DDP sends the first gradients while it computes the others. Only what this does not hide makes a step longer. DDP
    measures it: on a CPU in every step; on a GPU, where measuring takes time, once in `every` steps.
    """

    def __init__(self, wrapped: nn.Module, device: torch.device, every: int) -> None:
        # FSDP does not measure it
        self._ddp = wrapped if isinstance(wrapped, DistributedDataParallel) else None
        self._sampled = device.type == "cuda"
        self._before = (0, 0)
        if self._ddp:
            self._ddp._set_ddp_runtime_logging_sample_rate(every if self._sampled else 1)

    def read(self) -> float:
        """Seconds per step since the last call."""
        if not self._ddp:
            return 0.0
        measured = self._ddp._get_ddp_logging_data()
        names = ("backward_comm_time", "backward_compute_comm_overlap_time")
        if self._sampled:
            total, hidden = (int(measured.get(name, 0)) for name in names)
            return float(max(0, total - hidden)) / 1e9
        total, hidden = (int(measured.get(f"avg_{name}", 0)) for name in names)  # over all steps so far
        steps = int(measured.get("iteration", 0))
        now = (steps, (total - hidden) * steps)
        steps, waited = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        return float(max(0, waited)) / 1e9 / max(1, steps)


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s of this GPU; None if unknown."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """FLOP/s of the GPU of this name. The first that fits counts."""
    return next((peak * 1e12 for known, peak in PEAKS.items() if re.search(rf"\b{known}\b", name)), None)


def meta_copy(model: nn.Module) -> nn.Module | None:
    """A copy on the meta device: without memory for weights. None for a model that cannot be copied.

    Copy before activation checkpointing or FSDP change the model: recomputing is no work of the model, and torch
    cannot copy a sharded one.
    """
    tensors = [*model.parameters(), *model.buffers()]
    on_meta = {id(tensor): torch.empty_like(tensor, device="meta") for tensor in tensors}
    for parameter in model.parameters():
        on_meta[id(parameter)] = nn.Parameter(on_meta[id(parameter)], parameter.requires_grad)
    try:
        return copy.deepcopy(model, on_meta).train()  # takes what is in `on_meta` as copied already
    except Exception:  # noqa: BLE001  whatever a module raises: a missing figure must not end a training
        return None


def flops_of(on_meta: nn.Module | None, inputs: Tensor) -> float | None:
    """FLOPs of one sample, forward and backward, counted on the meta device without computing anything.

    None without a copy there, and for a model with a layer that torch cannot run there.
    """
    if on_meta is None:
        return None
    sample = inputs[:2]
    try:
        with FlopCounterMode(display=False) as counter:
            on_meta(sample.to("meta")).float().sum().backward()
    except Exception:  # noqa: BLE001  as above
        return None
    return float(counter.get_total_flops()) / len(sample)


class Tracker:
    """Records rank 0's figures as JSON lines, in TensorBoard or W&B. Raises ConfigError for a missing package."""

    def __init__(self, config: Config, folder: Path, first_step: int) -> None:
        self._lines = (folder / "metrics.jsonl").open("a") if "jsonl" in config.trackers else None
        self._board = self._run = None
        if "tensorboard" in config.trackers:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ConfigError("--track tensorboard: pip install tensorboard") from error
            # After a resume, steps that are done again replace those before.
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)
        if "wandb" in config.trackers:
            try:
                import wandb
            except ImportError as error:
                raise ConfigError("--track wandb: pip install wandb") from error
            with_key = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
            self._run = wandb.init(
                dir=str(folder),
                config=config.as_dict(),
                id=wandb_id(folder),
                resume="allow",
                mode=None if with_key else "offline",
            )
            # W&B's own count of steps refuses to go back, as it must after a resume.
            self._run.define_metric("*", step_metric="step")

    def write(self, step: int, figures: dict[str, Any]) -> None:
        if self._lines:
            attempt = os.environ.get("DDP_ORCH_ATTEMPT", "1")
            finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
            line = {"at": round(time.time(), 3), "attempt": int(attempt), "step": step, **finite}
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()
        if self._board:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)
        if self._run:
            self._run.log({"step": step, **figures})

    def close(self) -> None:
        if self._lines:
            self._lines.close()
        if self._board:
            self._board.close()
        if self._run:
            self._run.finish()


def wandb_id(folder: Path) -> str:
    """The same for every start of this run: it is kept with the snapshots. A new host takes that of ddp-orch."""
    file = folder / "wandb-id"
    if "WANDB_RUN_ID" in os.environ:
        return os.environ["WANDB_RUN_ID"]
    if not file.exists():
        file.write_text(os.environ.get("DDP_ORCH_RUN_ID") or secrets.token_hex(4))
    return file.read_text().strip()
