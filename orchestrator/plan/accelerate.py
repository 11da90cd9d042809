"""What a configuration of accelerate on this machine means for `accelerate launch` on the hosts. Reads files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError
from ..inventory.text_files import read_text
from ..inventory.yaml_source import Map, Scalar, YamlProblem, compose
from . import python_files
from .invocation import Invocation

KINDS = ("cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm")
"""Flags of which accelerate takes one. Without any, it takes the kind of its configuration."""

OF_CONFIG = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA")
"""Values of `distributed_type` that --multi_gpu would override."""


@dataclass(frozen=True)
class Config:
    values: Mapping[str, str]

    def number(self, key: str) -> int | None:
        value = self.values.get(key, "")
        return int(value) if value.isdecimal() else None


def complete(invocation: Invocation, folder: Path) -> Invocation:
    """The same command line, with what its --config_file asks for. `folder`: the one that the user is in.

    Raises UsageError for an invalid file, and for --cpu, with which accelerate would start ranks that do not know each
    other.
    """
    if not invocation.words:  # the script is in the inventory
        return invocation
    flags = _flags(invocation.words)
    if "cpu" in flags:
        raise UsageError(
            "accelerate launch --cpu starts ranks that do not know each other. Leave `accelerate launch` out, and add "
            "-e ACCELERATE_USE_CPU=true before --: torchrun starts the script then"
        )
    config = read_config(flags["config-file"], folder) if "config-file" in flags else None
    several = config is not None and (config.number("num_machines") or 1) > 1
    if config is not None and several:  # a file for one machine says nothing about several
        if invocation.total_ranks is None and invocation.nproc_per_node is None:
            invocation = replace(invocation, total_ranks=config.number("num_processes"))
        machines = config.number("num_machines")
        if invocation.nnodes is None and machines is not None:
            invocation = replace(invocation, nnodes=(machines, machines))
    kind = config.values.get("distributed_type", "") if config else ""
    own: tuple[str, ...] = ()
    is_known = "config-file" not in flags or config is not None
    if is_known and not flags.keys() & set(KINDS) and kind not in OF_CONFIG:
        own = ("--multi_gpu",)
    if "use-deepspeed" in flags or kind == "DEEPSPEED":
        own = (*own, "--deepspeed_multinode_launcher=standard")  # by default, it logs in to the other hosts itself
    return replace(invocation, words=(*own, *invocation.words))


def find_unused(invocation: Invocation, environ: Mapping[str, str], folder: Path) -> Path | None:
    """The default configuration of accelerate on this machine, if the script would use it here: no host reads it.

    `folder`: the one that the user is in.
    """
    starts = invocation.launcher == "accelerate" and "config-file" not in _flags(invocation.words)
    if not starts and not _is_imported(invocation.words, folder):
        return None
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(environ.get("HF_HOME") or cache / "huggingface").expanduser() / "accelerate"
    return next((path for name in ("yaml", "json") if (path := home / f"default_config.{name}").is_file()), None)


def _is_imported(words: Sequence[str], folder: Path) -> bool:
    script = python_files.file_of(words, folder)
    if script is None:
        return False
    own = folder if words[0] == "-m" else script.parent
    return python_files.find_import("accelerate", script, own) is not None


def _flags(words: Sequence[str]) -> dict[str, str]:
    return split_flags(words)[0]


def split_flags(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The flags of accelerate before the script, and the script or -m and a module, with its arguments.

    Flags are without dashes in front and with `-` for `_`. Their value is the next word, also if they take none.
    """
    flags: dict[str, str] = {}
    for number, (word, after) in enumerate(zip(words, (*words[1:], ""), strict=True)):
        if word in ("-m", "--module"):
            return flags, ("-m", *words[number + 1 :])
        if word.endswith(".py"):
            return flags, tuple(words[number:])
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags[name.replace("_", "-")] = value if equals else after
    return flags, ()


def read_config(file: str, folder: Path) -> Config | None:
    """None: the file may exist on the hosts only."""
    try:
        root = compose(read_text(folder / file))
    except FileNotFoundError:
        return None
    except YamlProblem as error:
        raise UsageError(f"accelerate launch --config_file {file}:{error.mark.line + 1}: {error.message}") from error
    values = {}
    for key, value in root.items if isinstance(root, Map) else ():
        if isinstance(key, Scalar) and isinstance(value, Scalar):
            values[key.text] = value.text
        elif isinstance(key, Scalar) and key.text == "dynamo_config" and isinstance(value, Map):
            values.update(
                (inner.text, node.text)
                for inner, node in value.items
                if isinstance(inner, Scalar) and isinstance(node, Scalar)
            )
    return Config(values)
