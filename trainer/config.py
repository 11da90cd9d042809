"""The flags: one frozen dataclass, and how a wrong one is refused. Never imports torch."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

OLD_FLAGS = {
    "--accumulate": "--grad-accum-steps",
    "--checkpoint": "--activation-checkpointing",
    "--clip": "--grad-clip",
    "--smoothing": "--label-smoothing",
    "--warm-up": "--warmup-fraction",
}
SCHEDULES = ("cosine", "linear", "constant")
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
        "MODULE:FUNCTION of your own, called with these flags and returning a training and a test dataset; "
        "digits (1797 real 8x8 images, bundled); csv (one image per line: square grey pixels, then the label); "
        "cifar10; folder (train/CLASS/*.jpg and val/CLASS/*.jpg); text (bytes are the tokens); tokens (16 bits each, "
        "like nanoGPT's train.bin); synthetic, synthetic-tokens (random data made on the device)",
        ("digits", "csv", "cifar10", "folder", "text", "tokens", "synthetic", "synthetic-tokens"),
    )
    init_from: str = flag("", "file of weights to start from: a snapshot or a state_dict")
    data_path: str = flag("", "file or folder of --data; cifar10 is downloaded there, default ~/.cache/ddp-trainer")
    image_size: int = flag(0, "height and width of the images; 0: keep their size, but 224 for synthetic and folder")
    samples: int = flag(12800, "number of training samples of --data synthetic and synthetic-tokens", least=1)
    classes: int = flag(1000, "number of classes of --data synthetic; synthetic-tokens has 50304 tokens", least=2)
    context: int = flag(256, "tokens in one sample of text", least=1)
    augment: bool = flag(False, "shift training images at random; for cifar10 and folder also mirror and crop them")
    randaugment: bool = flag(False, "RandAugment for --data folder (needs torchvision)")
    mixup: float = flag(0.0, "alpha of mixup; 0: off (needs torchvision)")
    cutmix: float = flag(0.0, "alpha of CutMix; 0: off (needs torchvision)")
    workers: int = flag(4, "processes per rank that load the samples of --data folder and MODULE:FUNCTION")
    epochs: int = flag(15, "passes over the training samples")
    max_steps: int = flag(0, "number of steps to train, instead of --epochs; 0: use --epochs")
    parallel: str = flag("ddp", "ddp: every rank has the whole model; fsdp: each has a part of it", ("ddp", "fsdp"))
    batch_size: int = flag(128, "samples per step, over all ranks together", least=1)
    seed: int = flag(0, "seed of the weights, the sample order and everything else that is random")
    # optimisation
    optimizer: str = flag("sgd", "sgd or adamw", ("sgd", "adamw"))
    lr: float = flag(0.1, "peak learning rate, after a linear warm-up")
    min_lr: float = flag(0.0, "learning rate at the end of --schedule cosine and linear")
    schedule: str = flag("cosine", "learning rate after warm-up: cosine, linear or constant", SCHEDULES)
    lr_batch: int = flag(0, "scale --lr by (--batch-size / N); 0: use --lr as given")
    warmup_steps: int = flag(0, "steps of warm-up; 0: use --warmup-fraction")
    warmup_fraction: float = flag(0.05, "fraction of all steps used for warm-up")
    weight_decay: float = flag(5e-4, "weight decay of matrices and convolutions; biases and norms have none")
    momentum: float = flag(0.9, "momentum of sgd")
    betas: str = flag("0.9,0.95", "betas of adamw")
    label_smoothing: float = flag(0.0, "label smoothing")
    ema: float = flag(0.0, "decay of a moving average of the weights, used in tests, such as 0.999; 0: off")
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
    no_reshard_after_forward: bool = flag(False, "fsdp: keep whole blocks until backward: faster, more memory")
    static_graph: bool = flag(False, "tell DDP that every step uses the same parameters")
    # slow networks
    compress: str = flag("none", "send gradients as fp16, bf16 or powersgd", ("none", "fp16", "bf16", "powersgd"))
    compress_rank: int = flag(2, "rank of powersgd's matrices: higher is more exact and sends more bytes", least=1)
    compress_after: int = flag(10, "steps before powersgd and --local-sgd begin", least=2)
    local_sgd: int = flag(0, "train on each rank alone and average the models every N steps; 0: off")
    # output
    out: str = flag("", "folder for snapshots; a run resumes from those in it. Default $DDP_ORCH_OUTPUT_DIR, else out")
    save_every: int = flag(0, "steps between snapshots; 0: once per epoch")
    save_memory_every: int = flag(0, "steps between snapshots in memory, in $DDP_ORCH_MEMORY_DIR; 0: none")
    eval_every: int = flag(0, "steps between evaluations on the test samples; 0: once per epoch")
    keep: int = flag(2, "number of snapshots to keep; if the newest is damaged, the one before is used", least=1)
    eval_only: bool = flag(False, "test the weights of --init-from, else of the newest snapshot, instead of training")
    sample_tokens: int = flag(0, "tokens that a language model appends to a text after each test; 0: off")
    decode: str = flag("", "MODULE:FUNCTION from tokens to text for --sample-tokens; for --data text: not needed")
    log_every: int = flag(10, "steps between log lines", least=1)
    log_ranks: str = flag("first", "first: one line per step; all: also one line per rank", ("first", "all"))
    track: str = flag("jsonl", "where rank 0 records metrics: a list out of jsonl,tensorboard,wandb, or none")
    profile_steps: str = flag("", "FIRST:LAST: record these steps on each rank as trace-rankN.json in --out")
    bench: bool = flag(False, "measure compute, data, all-reduce and all three together instead of training")
    bench_seconds: float = flag(2.0, "seconds per measurement; each is repeated five times")

    def check(self) -> None:
        """Raise ConfigError for a value that could not work on any machine."""
        for each in fields(self):
            value, choices, least = getattr(self, each.name), each.metadata["choices"], each.metadata["least"]
            if choices and value not in choices and not (each.name == "data" and ":" in value):
                raise ConfigError(f"--{spelled(each.name)[2:]} is one of {', '.join(choices)}, not {value!r}")
            if not isinstance(value, (str, bool)) and not value >= least:  # so written, it refuses nan too
                raise ConfigError(f"{spelled(each.name)} must be at least {least:g}, not {value}")
        if self.seed >= 2**31:
            raise ConfigError(f"--seed must be below 2^31, not {self.seed}")
        for name in ("warmup_fraction", "label_smoothing", "momentum", "ema"):
            if getattr(self, name) >= 1:
                raise ConfigError(f"{spelled(name)} must be below 1, not {getattr(self, name)}")
        if len(self.beta_values) != 2 or not all(0 <= beta < 1 for beta in self.beta_values):
            raise ConfigError(f"--betas must be two numbers below 1, such as 0.9,0.95; not {self.betas!r}")
        for tracker in self.trackers:
            if tracker not in TRACKERS:
                raise ConfigError(f"--track takes {', '.join(TRACKERS)}, with commas between, or none; not {tracker!r}")
        if self.data in ("csv", "folder", "text", "tokens") and not self.data_path:
            raise ConfigError(f"--data {self.data} needs --data-path")
        if self.profile_steps and not 1 <= self.profile_window[0] <= self.profile_window[1]:
            raise ConfigError(f"--profile-steps must be FIRST:LAST, such as 10:13; not {self.profile_steps!r}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.local_sgd:
            self._refuse_with("--local-sgd", "compress", "static_graph", "ema")
        if self.parallel == "fsdp":
            self._refuse_with(
                "--parallel fsdp", "compress", "local_sgd", "static_graph", "sync_bn", "channels_last", "bench"
            )
            if self.keep < 2:  # nodes without a shared disk do not finish a snapshot at the same moment
                raise ConfigError("--parallel fsdp needs --keep 2 or more")
        if self.precision == "fp16" and (self.local_sgd or self.parallel == "fsdp"):
            other = "--local-sgd" if self.local_sgd else "--parallel fsdp"
            raise ConfigError(f"{other} does not go with --precision fp16")
        if self.randaugment and self.data != "folder":
            raise ConfigError(f"--randaugment is for --data folder, not {self.data}")
        if self.static_graph and self.grad_accum_steps > 1:
            raise ConfigError(
                "--static-graph does not go with --grad-accum-steps: DDP must sum up every backward pass then"
            )

    def _refuse_with(self, flag: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value != Config.__dataclass_fields__[name].default:
                what = spelled(name) if value is True else f"{spelled(name)} {value}"
                raise ConfigError(f"{flag} does not go with {what}")

    @property
    def tests_weights(self) -> bool:
        """Whether to test the weights of --init-from. Snapshots in --out do not count then."""
        return self.eval_only and bool(self.init_from)

    @property
    def trackers(self) -> tuple[str, ...]:
        return () if self.track == "none" else tuple(self.track.split(","))

    @property
    def beta_values(self) -> tuple[float, ...]:
        try:
            return tuple(float(beta) for beta in self.betas.split(","))
        except ValueError:
            return ()

    @property
    def profile_window(self) -> tuple[int, int]:
        """The first and the last step to profile, counted from 1; (0, 0) for none or a wrong value."""
        first, _, last = self.profile_steps.partition(":")
        return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else (0, 0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def spelled(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def expand_files(argv: Sequence[str], folder: Path | None = None) -> list[str]:
    """Replace each --config FILE by the flags in it. FILE is relative to `folder`. Raises ConfigError.

    The flags of files come first, so that those of the command line win.
    """
    from_files: list[str] = []
    flags: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--config":
            from_files += read_file((folder or Path()) / (value if equals else next(words, "")))
        else:
            flags.append(word)
    return [*from_files, *flags]


def replace_old(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Replace old flags by new ones. Return a notice for each old flag too."""
    words, notices = [], {}
    for word in argv:
        flag, equals, value = word.partition("=")
        if flag in OLD_FLAGS:
            notices[flag] = f"{flag} is deprecated; use {OLD_FLAGS[flag]}"
            flag = OLD_FLAGS[flag]
        words.append(f"{flag}{equals}{value}")
    return words, list(notices.values())


def read_file(path: Path) -> list[str]:
    """The flags in a YAML, TOML or JSON file of `flag: value`. `batch_size` and `batch-size` are the same key."""
    known = {name for each in fields(Config) for name in (each.name, spelled(each.name)[2:])}
    known |= {old[2:] for old in OLD_FLAGS}
    flags = []
    for key, value in _load_mapping(path).items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            raise ConfigError(f"{path}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if isinstance(value, bool):
            flags.append(spelled(key) if value else "--no" + spelled(key)[1:])
        elif isinstance(value, (int, float, str)):
            flags.append(f"{spelled(key)}={value}")
        elif isinstance(value, list):
            flags.append(f"{spelled(key)}={','.join(map(str, value))}")
        else:
            raise ConfigError(f"{path}: {key}: expected a value, not {value!r}")
    return flags


def _load_mapping(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text()
        if path.suffix == ".toml":
            toml = importlib.import_module("tomllib")  # part of Python since 3.11
            return dict(toml.loads(text))
        if path.suffix == ".json":
            loaded = json.loads(text)
        else:
            import yaml

            loaded = yaml.safe_load(text) or {}
    except ImportError as error:
        raise ConfigError(f"--config {path}: this Python has no {error.name}; install it, or use JSON") from error
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except Exception as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config {path}: expected lines of `flag: value`")
    return loaded


def parse(argv: Sequence[str]) -> Config:
    """Raises ConfigError."""
    parser = _Parser(
        prog="python -m trainer",
        description="Train an image classifier or a small GPT, data-parallel over all ranks, on CPU or GPU. "
        "Without flags: a small CNN on real handwritten digits, in seconds.",
        epilog="Example: torchrun --nproc-per-node=2 -m trainer --model resnet18 --data synthetic",
        allow_abbrev=False,
    )
    # python -m torch.distributed.launch passes one of these; the environment says the same
    parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help="read flags from a YAML, TOML or JSON file; other flags win")
    for each in fields(Config):
        _add_flag(parser, each)
    given = vars(parser.parse_args(replace_old(expand_files(argv))[0]))
    del given["local_rank"], given["config"]
    given["out"] = given["out"] or os.environ.get("DDP_ORCH_OUTPUT_DIR") or "out"
    config = Config(**given)
    config.check()
    return config


def _add_flag(parser: argparse.ArgumentParser, each: Field[Any]) -> None:
    kind, help = type(each.default), each.metadata["help"]
    if kind is bool:
        parser.add_argument(spelled(each.name), action="store_true", help=help)
        parser.add_argument(
            "--no" + spelled(each.name)[1:], dest=each.name, action="store_false", help=argparse.SUPPRESS
        )
        parser.set_defaults(**{each.name: each.default})
        return
    default = f"{each.default:g}" if isinstance(each.default, float) else each.default
    shown = "" if default == "" or "0:" in help else f" (default {default})"
    metavar = {int: "N", float: "X", str: "NAME"}[kind]
    parser.add_argument(spelled(each.name), type=kind, default=each.default, metavar=metavar, help=help + shown)


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
