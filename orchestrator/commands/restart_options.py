"""Combine the options that a run was started with and those of `restart`, which win."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError
from ..inventory import settings as command_line
from . import variables
from .up_options import UpOptions

ENV = "run.env."  # the key of a variable, in `--set run.env.NAME=VALUE`


@dataclass(frozen=True)
class Added:
    """Options of `up` that `restart` has too, as they were given to it."""

    settings: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    env_file: tuple[str, ...] = ()


def combine(before: UpOptions, folder: str, added: Added, here: Path) -> UpOptions:
    """The options of the new run. `folder`: where `up` was called, and will be called again. `here`: that of `restart`.

    Raises UsageError, also if an option of `restart` would have no effect.
    """
    files = [str(here / file) for file in added.env_file]
    for file in files:
        if Path(file).exists() and not Path(file).is_file():  # a later restart reads it again
            raise UsageError(f"--env-file {file}: `restart` needs a regular file; for a single variable, give -e")
    variables.check_settings(added.settings, files, added.env)
    settings, moved = _move_variables(before, folder, added)
    env = [*added.env, *moved]
    names = {*variables.names(files, env)}
    same_files = {(Path(folder) / file).resolve() for file in files}
    return replace(
        before,
        settings=_last_of_each([*_without(before.settings, {f"{ENV}{name}" for name in names}), *settings]),
        env=_last_of_each([*_without(before.env, names), *env]),
        env_file=(
            *(file for file in before.env_file if (Path(folder) / file).resolve() not in same_files),
            *dict.fromkeys(files),
        ),
    )


def _move_variables(before: UpOptions, folder: str, added: Added) -> tuple[Sequence[str], Sequence[str]]:
    """The settings of `restart`, and as options -e those that a variable of `up` would override."""
    if not (given := command_line.variables(added.settings)):
        return added.settings, ()
    overriding = variables.names([str(Path(folder) / file) for file in before.env_file], before.env)
    kept, moved = [], []
    for setting in added.settings:
        key, name = _key(setting), _key(setting).removeprefix(ENV)
        if not key.startswith(ENV) or name not in overriding:
            kept.append(setting)
        elif (value := given.get(name)) is not None:
            moved.append(f"{name}={value}")
    of_kept = command_line.variables(kept)
    for name, value in given.items():
        if name in overriding and (name in of_kept or value is None):
            raise UsageError(
                f"--set cannot change {name}, because the run was started with {overriding[name]}, which overrides "
                f"run.env; give -e {name}={'VALUE' if value is None else shlex.quote(value)}"
            )
    return kept, moved


def _key(item: str) -> str:
    return item.partition("=")[0]


def _without(items: Sequence[str], keys: set[str]) -> Iterator[str]:
    return (item for item in items if _key(item) not in keys)


def _last_of_each(items: Sequence[str]) -> tuple[str, ...]:
    """Of the items with the same key, the last."""
    last: dict[str, str] = {}
    for item in items:
        last.pop(_key(item), None)
        last[_key(item)] = item
    return tuple(last.values())
