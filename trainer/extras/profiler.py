"""Record what the CPU and the GPU do in some steps, as a trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.config import Config
from trainer.dist import World


class Profiler:
    """Profiles the steps of --profile-steps FIRST:LAST, counted from 1, on every rank. Without the flag: none.

    A run that resumes inside these steps, or ends there, records those that it does.
    """

    def __init__(self, config: Config, world: World, steps_before: int) -> None:
        first, self._last = config.profile_window
        self._first = max(first, steps_before + 1)
        self._world = world
        self._file = Path(config.out) / f"trace-rank{world.rank}.json"
        self._profile: profile | None = None
        if self._first > self._last > 0 and world.rank == 0:
            reason = f"the run continues after step {steps_before}"
            print(f"trainer: --profile-steps {config.profile_steps} records nothing: {reason}", file=sys.stderr)

    def before(self, step: int) -> None:
        if step == self._first <= self._last:
            cuda = [ProfilerActivity.CUDA] if self._world.device.type == "cuda" else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profile.start()

    def after(self, step: int) -> None:
        if step >= self._last:
            self.close(step)

    def close(self, step: int) -> None:
        """Write what is recorded up to `step`."""
        if not self._profile:
            return
        if self._world.device.type == "cuda":
            torch.cuda.synchronize()  # kernels of the last step may still run
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._file))
        self._profile = None
        self._world.print(f"profiled steps:{self._first}:{step} trace:{self._file}")
