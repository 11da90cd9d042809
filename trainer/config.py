"""The flags: one frozen dataclass, and how a wrong one is refused. Never imports torch."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

OLD_FLAGS = {
    "--accumulate": "--grad-accum-steps",
    "--checkpoint": "--activation-checkpointing",
    "--clip": "--grad-clip",
    "--smoothing": "--label-smoothing",
    "--warm-up": "--warmup-fraction",
}
TRACKERS = ("jsonl", "tensorboard", "wandb")


class ConfigError(Exception):
    """What was asked for cannot be done here. Its text is one line, for people; the trainer then exits with 2."""


def flag(default: Any, help: str, choices: tuple[str, ...] = (), least: float = 0) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices, "least": least})


@dataclass(frozen=True)
class Config:
    """One field is one flag: `batch_size` is `--batch-size`, of the type of its default."""

    # model and data
    model: str = flag(
        "digits-cnn",
        "digits-cnn; gpt-tiny, gpt-mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl; a torchvision classification model "
        "such as resnet18; resnet18-cifar and the like for small images; or MODULE:FUNCTION of your own, called with "
        "the number of classes",
    )
    data: str = flag(
        "digits",
        "digits (1797 real 8x8 images, bundled); csv (one image per line: square grey pixels, then the label); "
        "cifar10; folder (train/CLASS/*.jpg and val/CLASS/*.jpg); text (bytes are the tokens); tokens (16 bits each, "
        "like nanoGPT's train.bin); synthetic, synthetic-tokens (random data made on the device)",
        ("digits", "csv", "cifar10", "folder", "text", "tokens", "synthetic", "synthetic-tokens"),
    )
    data_path: str = flag("", "file or folder of --data; cifar10 is downloaded there, default ~/.cache/ddp-trainer")
    image_size: int = flag(0, "height and width of the images; 0: keep their size (synthetic and folder: 224)")
    samples: int = flag(12800, "number of training samples of --data synthetic and synthetic-tokens", least=1)
    classes: int = flag(1000, "number of classes of --data synthetic; synthetic-tokens has 50304 tokens", least=2)
    context: int = flag(256, "tokens in one sample of text", least=1)
    augment: bool = flag(False, "shift training images at random; for cifar10 and folder also mirror and crop them")
    workers: int = flag(4, "processes per rank that read and decode the images of --data folder")
    epochs: int = flag(15, "passes over the training samples")
    batch_size: int = flag(128, "samples per step, over all ranks together", least=1)
    seed: int = flag(0, "seed of the weights, the sample order and everything else that is random")
    # optimisation
    optimizer: str = flag("sgd", "sgd (momentum 0.9) or adamw", ("sgd", "adamw"))
    lr: float = flag(0.1, "peak learning rate: linear warm-up, then a cosine down to 0")
    lr_batch: int = flag(0, "scale --lr by (--batch-size / N); 0: use --lr as given")
    warmup_fraction: float = flag(0.05, "fraction of all steps used for warm-up")
    weight_decay: float = flag(5e-4, "weight decay; adamw does not apply it to biases and norms")
    label_smoothing: float = flag(0.0, "label smoothing")
    grad_clip: float = flag(0.0, "maximum norm of the gradient; 0: no limit")
    grad_accum_steps: int = flag(1, "micro-batches per step and rank: more need less memory", least=1)
    # speed
    device: str = flag("auto", "cuda, cpu, or auto (cuda if there is a GPU)", ("auto", "cuda", "cpu"))
    precision: str = flag("fp32", "fp32, tf32, bf16 or fp16 (autocast)", ("fp32", "tf32", "bf16", "fp16"))
    channels_last: bool = flag(False, "store images channels last, which is faster for convolutions on GPUs")
    compile: bool = flag(False, "torch.compile the model")
    activation_checkpointing: bool = flag(False, "recompute activations inside the model's blocks to need less memory")
    sync_bn: bool = flag(False, "compute batch norm over the images of all ranks")
    bucket_mb: int = flag(25, "MB of gradients that DDP sends at once", least=1)
    static_graph: bool = flag(False, "tell DDP that every step uses the same parameters")
    # slow networks
    compress: str = flag("none", "send gradients as fp16, bf16 or powersgd", ("none", "fp16", "bf16", "powersgd"))
    compress_rank: int = flag(2, "rank of powersgd's matrices: higher is more exact and sends more bytes", least=1)
    compress_after: int = flag(10, "steps before powersgd and --local-sgd begin", least=2)
    local_sgd: int = flag(0, "train on each rank alone and average the models every N steps; 0: off")
    # output
    out: str = flag("", "folder for snapshots; a run resumes from those in it. Default $DDP_ORCH_OUTPUT_DIR, else out")
    save_every: int = flag(0, "steps between snapshots; 0: once per epoch")
    keep: int = flag(2, "number of snapshots to keep; if the newest is damaged, the one before is used", least=1)
    log_every: int = flag(10, "steps between log lines", least=1)
    log_ranks: str = flag("first", "first: log the steps once; all: also one line per rank", ("first", "all"))
    track: str = flag("jsonl", "where rank 0 records metrics: a list out of jsonl,tensorboard,wandb, or none")
    bench: bool = flag(False, "measure compute, data, all-reduce and all three together instead of training")
    bench_seconds: float = flag(2.0, "seconds per measurement; each is repeated five times")

    def check(self) -> None:
        """Raise ConfigError for a value that could not work on any machine."""
        for each in fields(self):
            value, choices, least = getattr(self, each.name), each.metadata["choices"], each.metadata["least"]
            if choices and value not in choices:
                raise ConfigError(f"--{spelled(each.name)[2:]} is one of {', '.join(choices)}, not {value!r}")
            if not isinstance(value, (str, bool)) and not value >= least:  # so written, it refuses nan too
                raise ConfigError(f"{spelled(each.name)} must be at least {least:g}, not {value}")
        if self.seed >= 2**31:
            raise ConfigError(f"--seed must be below 2^31, not {self.seed}")
        for name in ("warmup_fraction", "label_smoothing"):
            if getattr(self, name) >= 1:
                raise ConfigError(f"{spelled(name)} must be below 1, not {getattr(self, name)}")
        for tracker in self.trackers:
            if tracker not in TRACKERS:
                raise ConfigError(f"--track takes {', '.join(TRACKERS)}, with commas between, or none; not {tracker!r}")
        if self.data in ("csv", "folder", "text", "tokens") and not self.data_path:
            raise ConfigError(f"--data {self.data} needs --data-path")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.local_sgd:
            for name, common in {
                "compress": "none",
                "precision": ("fp32", "tf32", "bf16"),
                "static_graph": False,
            }.items():
                if getattr(self, name) not in (common if isinstance(common, tuple) else (common,)):
                    value = getattr(self, name)
                    what = spelled(name) if value is True else f"{spelled(name)} {value}"
                    raise ConfigError(f"--local-sgd does not go with {what}")
        if self.static_graph and self.grad_accum_steps > 1:
            raise ConfigError(
                "--static-graph does not go with --grad-accum-steps: DDP must sum up every backward pass then"
            )

    @property
    def trackers(self) -> tuple[str, ...]:
        return () if self.track == "none" else tuple(self.track.split(","))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def spelled(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def replace_old(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """`argv` with the flags of today, and a notice for each old flag in it."""
    words, notices = [], {}
    for word in argv:
        flag, equals, value = word.partition("=")
        if flag in OLD_FLAGS:
            notices[flag] = f"{flag} is deprecated; use {OLD_FLAGS[flag]}"
            flag = OLD_FLAGS[flag]
        words.append(f"{flag}{equals}{value}")
    return words, list(notices.values())


def parse(argv: Sequence[str]) -> Config:
    """Raises ConfigError."""
    parser = _Parser(
        prog="python -m trainer",
        description="Train an image classifier or a small GPT, data-parallel over all ranks, on CPU or GPU. "
        "Without flags: a small CNN on real handwritten digits, in seconds.",
        epilog="Example: torchrun --nproc-per-node=2 -m trainer --model resnet18 --data synthetic",
        allow_abbrev=False,
    )
    # python -m torch.distributed.launch gives one of these; the environment says the same
    parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)
    for each in fields(Config):
        kind = type(each.default)
        if kind is bool:
            parser.add_argument(spelled(each.name), action="store_true", help=each.metadata["help"])
            continue
        shown = "" if each.default in ("", 0) else f" (default {each.default})"
        metavar = {int: "N", float: "X", str: "NAME"}[kind]
        help = each.metadata["help"] + shown
        parser.add_argument(spelled(each.name), type=kind, default=each.default, metavar=metavar, help=help)
    given = vars(parser.parse_args(replace_old(argv)[0]))
    del given["local_rank"]
    given["out"] = given["out"] or os.environ.get("DDP_ORCH_OUTPUT_DIR") or "out"
    config = Config(**given)
    config.check()
    return config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        word = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        if len(word) > 2 and (near := difflib.get_close_matches(word, self._option_string_actions, 1)):
            message += f"; did you mean {near[0]}?"
        raise ConfigError(f"{message} (see python -m trainer --help)")


def refuse(error: ConfigError, speaks: bool) -> NoReturn:
    """Exit with 2 before the ranks have met. One that `speaks` says why, for all that have the same error."""
    if speaks:
        print(f"trainer: {error}", file=sys.stderr, flush=True)
    else:
        # torchrun ends all its workers as soon as one has exited, which must not be before the other has spoken.
        time.sleep(3)
    sys.exit(2)
