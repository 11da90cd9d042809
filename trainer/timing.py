"""Where a step's time goes, and what part of what the GPU could do that is."""

from __future__ import annotations

import copy
import re
import time
from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

# TFLOP/s of dense matrices in 16 bits, from NVIDIA's data sheets; by a word of the GPU's name
PEAKS = {
    "GB200": 2500, "B200": 2250, "GH200": 989, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H800": 989,
    "A100": 312, "A800": 312, "A40": 149.7, "A30": 165, "A10G": 70, "A10": 125, "L40S": 362, "L40": 181, "L4": 121,
    "V100S": 130, "V100": 125, "T4": 65, "RTX 5090": 209.5, "RTX 4090": 165.2, "RTX 3090": 71,
}  # fmt: skip


class Watch:
    """Adds up the seconds between laps, by name. On a GPU by its own events, which hold up nothing."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """What was done since the last lap has this name."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append((name, event))
        else:
            now = time.perf_counter()
            self._seconds[name] += now - self._last
            self._last = now

    def read(self) -> dict[str, float]:
        """Seconds by name since the last time this was called."""
        if self._events:
            self._events[-1][1].synchronize()
            for (_, before), (name, after) in zip(self._events, self._events[1:], strict=False):
                self._seconds[name] += before.elapsed_time(after) / 1000
            self._events = self._events[-1:]
        read, self._seconds = self._seconds, defaultdict(float)
        return read


class GradientWait:
    """The part of backward in which there was nothing left to compute: the rest of the gradients was on its way.

    DDP sends the first gradients while it computes the others; only what that does not hide makes a step longer. It
    measures this itself: on a CPU in every step, on a GPU, where the measurement holds it up, once in `every` steps.
    """

    def __init__(self, ddp: DistributedDataParallel, device: torch.device, every: int) -> None:
        self._ddp, self._sampled = ddp, device.type == "cuda"
        self._before = (0, 0)
        ddp._set_ddp_runtime_logging_sample_rate(every if self._sampled else 1)

    def read(self) -> float:
        """Seconds a step, since the last time this was called."""
        measured = self._ddp._get_ddp_logging_data()
        names = ("backward_comm_time", "backward_compute_comm_overlap_time")
        if self._sampled:
            all_of_it, hidden = (int(measured.get(name, 0)) for name in names)
            return float(max(0, all_of_it - hidden)) / 1e9
        all_of_it, hidden = (int(measured.get(f"avg_{name}", 0)) for name in names)  # over all steps so far
        steps = int(measured.get("iteration", 0))
        now = (steps, (all_of_it - hidden) * steps)
        steps, waited = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        return float(max(0, waited)) / 1e9 / max(1, steps)


def peak_flops(device: torch.device) -> float | None:
    """Of one GPU in a second; None where we do not know."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Floating point operations a second of the GPU of this name; of several that fit it is the first."""
    return next((peak * 1e12 for known, peak in PEAKS.items() if re.search(rf"\b{known}\b", name)), None)


def flops_of(model: nn.Module, inputs: Tensor) -> float | None:
    """Floating point operations of one sample, forward and backward, counted without computing anything.

    None for a model with a layer that torch cannot run without data, or off the GPU.
    """
    ghost = copy.deepcopy(model).to("meta").train()
    few = inputs[:2]
    try:
        with FlopCounterMode(display=False) as counter:
            ghost(few.to("meta")).float().sum().backward()
    except Exception:  # noqa: BLE001  whatever a layer has against it: no training ends for want of a figure
        return None
    return float(counter.get_total_flops()) / len(few)
