"""Record what the CPU and the GPU do in some steps, as a trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.config import Config
from trainer.dist import World


class Profiler:
    """Profiles the steps of --profile-steps FIRST:LAST, counted from 1, on every rank. Without the flag: none."""

    def __init__(self, config: Config, world: World) -> None:
        self._first, self._last = config.profile_window
        self._world = world
        self._file = Path(config.out) / f"trace-rank{world.rank}.json"
        self._profile: profile | None = None

    def before(self, step: int) -> None:
        if step == self._first:
            cuda = [ProfilerActivity.CUDA] if self._world.device.type == "cuda" else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profile.start()

    def after(self, step: int) -> None:
        if self._profile and step >= self._last:
            if self._world.device.type == "cuda":
                torch.cuda.synchronize()  # kernels of the last step may still run
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._file))
            self._profile = None
            self._world.print(f"profiled steps:{self._first}:{self._last} trace:{self._file}")
