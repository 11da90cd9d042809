"""Take what stands before a command: variables, `env`, and programs such as `uv run` that only start it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import UsageError
from ..inventory.values import is_reserved

STARTERS = {
    ("uv", "run"): "the `python` of each host starts the command",
    ("poetry", "run"): "the `python` of each host starts the command",
    ("pipenv", "run"): "the `python` of each host starts the command",
    ("nohup",): "a run does not end with your session",
}
"""Programs that are left out, and why."""

SET_BY_US = "ddp-orch sets it for each rank"
_OF_ONE_HOST = ("NODE_RANK", "PET_NODE_RANK", "MACHINE_RANK")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Leading:
    """A command, and what stood before it."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    """What is left out, and why."""


def take(words: Sequence[str]) -> Leading:
    """For a command whose ranks ddp-orch starts. Raises UsageError."""
    first = take_variables(words)
    for starter, reason in STARTERS.items():
        if first.words[: len(starter)] == starter:
            name = " ".join(starter)
            if "--" in first.words[len(starter) : len(starter) + 1]:
                starter = (*starter, "--")
            rest = first.words[len(starter) :]
            if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
                raise UsageError(f"{' '.join(words[:4])}: leave {name} and its flags out; {reason}")
            after = take(("python", *rest) if rest[0] == "-m" else rest)
            return Leading(after.words, {**first.env, **after.env}, {**first.ignored, name: reason, **after.ignored})
    return first


def take_variables(words: Sequence[str]) -> Leading:
    """For a command that is started as it is: only NAME=VALUE and `env`. Raises UsageError."""
    env: dict[str, str] = {}
    ignored: dict[str, str] = {}
    rest = list(words)
    while rest:
        assignment = _ASSIGNMENT.fullmatch(rest[0])
        if assignment:
            add_variable(assignment[1], assignment[2], env, ignored)
        elif rest[0].rpartition("/")[2] != "env":
            break
        elif rest[1:2] and rest[1].startswith("-"):
            raise UsageError(f"env {rest[1]}: not supported; give variables as NAME=VALUE")
        del rest[0]
    if not rest and (env or ignored):
        raise UsageError(f"{' '.join(words)}: the command is missing; -e NAME=VALUE before -- sets a variable only")
    return Leading(tuple(rest), env, ignored)


def add_variable(name: str, value: str, env: dict[str, str], ignored: dict[str, str]) -> None:
    """Put a variable of a command line where it belongs. Raises UsageError for the choice of GPUs."""
    if name == "CUDA_VISIBLE_DEVICES":
        gpus = f"[{value}]" if value not in ("", "-1") else "none"  # "" and -1 hide all GPUs
        raise UsageError(
            f"{name}={value}: set `gpus: {gpus}` of the hosts in the inventory instead; without it, a run uses all "
            "GPUs of each host"
        )
    if is_reserved(name) or name in _OF_ONE_HOST:
        ignored[name] = SET_BY_US
    else:
        env[name] = value
