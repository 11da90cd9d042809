"""Where rank 0 keeps the figures beside the log: lines of JSON, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from trainer.config import Config, ConfigError


class Tracker:
    """Raises ConfigError when a package is missing. Made on rank 0 only; the others have none."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._lines = (folder / "metrics.jsonl").open("a") if "jsonl" in config.trackers else None
        self._board = self._run = None
        if "tensorboard" in config.trackers:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ConfigError("--track tensorboard: pip install tensorboard") from error
            self._board = SummaryWriter(str(folder / "tensorboard"))
        if "wandb" in config.trackers:
            try:
                import wandb
            except ImportError as error:
                raise ConfigError("--track wandb: pip install wandb") from error
            with_key = "WANDB_API_KEY" in os.environ or "WANDB_MODE" in os.environ
            self._run = wandb.init(
                dir=str(folder),
                config=config.as_dict(),
                # one run, however often it goes on
                id=os.environ.get("WANDB_RUN_ID") or os.environ.get("DDP_ORCH_RUN_ID"),
                resume="allow",
                mode=None if with_key else "offline",
            )

    def keep(self, step: int, figures: dict[str, Any]) -> None:
        if self._lines:
            attempt = os.environ.get("DDP_ORCH_ATTEMPT", "1")
            line = {"at": round(time.time(), 3), "attempt": int(attempt), "step": step, **figures}
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()
        if self._board:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)
        if self._run:
            self._run.log(figures, step=step)

    def close(self) -> None:
        if self._lines:
            self._lines.close()
        if self._board:
            self._board.close()
        if self._run:
            self._run.finish()
