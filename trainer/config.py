"""The flags: one frozen dataclass, and how a wrong one is refused. Never imports torch."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn


class ConfigError(Exception):
    """What was asked for cannot be done here. Its text is one line, for people; the trainer then exits with 2."""


def flag(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Config:
    """One field is one flag: `batch_size` is `--batch-size`, of the type of its default."""

    model: str = flag("digits-cnn", "digits-cnn, or any torchvision classification model such as resnet18")
    data: str = flag("digits", "digits (1797 real 8x8 images, bundled) or synthetic (noise, made on the device)")
    image_size: int = flag(0, "height and width of the images; 0 means 8 for digits, 224 for synthetic")
    samples: int = flag(12800, "how many training images --data synthetic has")
    classes: int = flag(1000, "how many classes --data synthetic has")
    epochs: int = flag(15, "passes over the training images")
    batch_size: int = flag(128, "images per step, of all ranks together")
    lr: float = flag(0.1, "highest learning rate of SGD with momentum; warm-up, then a cosine down to 0")
    seed: int = flag(0, "seed of the weights, of the order of the images and of all else that is random")
    device: str = flag("auto", "cuda, cpu, or auto: cuda where there is one")
    out: str = flag("", "folder of the snapshots, where a run goes on; by default $DDP_ORCH_OUTPUT_DIR, else out")
    save_every: int = flag(0, "steps between snapshots; 0 means once an epoch")
    log_every: int = flag(10, "steps between lines of the log")

    def check(self) -> None:
        """Raise ConfigError for a value that could not work on any machine."""
        for name, choices in {"data": ("digits", "synthetic"), "device": ("auto", "cuda", "cpu")}.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"--{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        least = {"samples": 1, "classes": 2, "batch_size": 1, "log_every": 1}
        for name, value in self.as_dict().items():
            if not isinstance(value, str) and not value >= least.get(name, 0):  # so written, it refuses nan too
                raise ConfigError(f"{spelled(name)} must be at least {least.get(name, 0)}, not {value}")
        if self.seed >= 2**31:
            raise ConfigError(f"--seed must be below 2^31, not {self.seed}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def spelled(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def parse(argv: Sequence[str]) -> Config:
    """Raises ConfigError."""
    parser = _Parser(
        prog="python -m trainer",
        description="Train an image classifier, data-parallel over all ranks, on CPU or GPU. "
        "Without flags: a small CNN on real handwritten digits, in seconds.",
        epilog="Example: torchrun --nproc-per-node=2 -m trainer --model resnet18 --data synthetic",
        allow_abbrev=False,
    )
    for each in fields(Config):
        shown = "" if each.default in ("", 0) else f" ({each.default})"
        parser.add_argument(
            spelled(each.name),
            type=type(each.default),
            default=each.default,
            metavar={int: "N", float: "X", str: "NAME"}[type(each.default)],
            help=each.metadata["help"] + shown,
        )
    given = vars(parser.parse_args(argv))
    given["out"] = given["out"] or os.environ.get("DDP_ORCH_OUTPUT_DIR") or "out"
    config = Config(**given)
    config.check()
    return config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see python -m trainer --help)")


def refuse(error: ConfigError, speaks: bool) -> NoReturn:
    """Exit with 2 before the ranks have met. One that `speaks` says why, for all that have the same error."""
    if speaks:
        print(f"trainer: {error}", file=sys.stderr, flush=True)
    else:
        # torchrun ends all its workers as soon as one has exited, which must not be before the other has spoken.
        time.sleep(3)
    sys.exit(2)
