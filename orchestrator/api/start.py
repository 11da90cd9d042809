"""Start a script or a function on the hosts of an inventory, and find runs that were started before."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..answers.fields import UNFINISHED
from ..errors import UsageError
from ..output.console import number_of
from ..runs import recent
from . import command_line
from .handle import Run, RunStatus, read_status

MAX_NAMED = 5  # runs in a message
MAX_ARGUMENTS = 100_000
"""Bytes of the arguments of a function. Linux refuses a word of 128 KiB in a command line."""


def run(
    target: str | Path | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inventory: str | Path | Mapping[str, Any] | None = None,
    hosts: str | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    wait_for_hosts: bool = False,
    skip_check: bool = False,
) -> Run:
    """Start a script, or call a function in every rank. Returns when the run has started.

    `target`: a Python file; or a function at the top level of a file. The hosts find the function by its name: its file
    is sent like a script, with the code around it.
    `args`, `kwargs`: for a script, the words of its command line; for a function, values that JSON can represent.
    `inventory`: a file, a source such as `@slurm`, or the contents of an inventory as a mapping, in which paths are
    absolute. Default: $DDP_ORCH_INVENTORY, or ./inventory.yaml.
    `hosts`: only these, such as `gpu[01-04]`.
    `name`: the name of the run and of its output folder.
    `env`: variables for the ranks.
    `settings`: keys of `run` or `notify` of the inventory, such as `{"run.max_restarts": 3}`.
    `wait_for_hosts`: wait while another run uses the GPUs or the name.
    `skip_check`: start even if the checks find an error.

    Raises UsageError; FindingsError if a check failed; UnreachableError; HeldError if a GPU, a port or the name is in
    use. Nothing was started then.
    """
    if callable(target):
        words = _call(target, args, kwargs or {})
    elif kwargs:
        raise UsageError("kwargs are for functions; give the words of a script's command line as args")
    else:
        words = ["--", os.fspath(target), *map(str, args)]
    place = _inventory_file(inventory)
    options = ["--detach", "--json"]
    values = {"--inventory": place, "--hosts": hosts, "--name": name}
    options += [f"{option}={value}" for option, value in values.items() if value is not None]
    options += [f"--env={variable}={value}" for variable, value in (env or {}).items()]
    options += [f"--set={key}={_setting(value)}" for key, value in (settings or {}).items()]
    options += [flag for flag, is_set in {"--wait": wait_for_hosts, "--skip-check": skip_check}.items() if is_set]
    return _handle(json.loads(command_line.call(["up", *options, *words])[0]), place)


def find_run(run: str, inventory: str | Path | None = None) -> Run:
    """The run with this name, or with this id or a part of it.

    If several have the name: the newest one that is not over, or else the newest.

    `inventory`: where to look; by default, the inventory that the run was started with, if it was started from this
    machine. Raises UsageError if there is no such run.
    """
    started_with = recent.inventories_of(run) if inventory is None else []
    known = list_runs(started_with[0] if started_with else inventory, finished=True)
    named = [each for each in known if run in (each.run_id, each.name)]
    named = [each for each in named if each.run_id == run or known[each].state in UNFINISHED] or named
    parts = [each for each in known if each.run_id.startswith(run) or each.run_id.endswith(run)]
    if not named and len(parts) != 1:
        if parts:
            raise UsageError(f"{run}: several runs match: {', '.join(each.run_id for each in parts)}")
        raise UsageError(f"{run}: these hosts have no such run; {_describe_newest(list(known))}")
    return (named or parts)[-1]


def _describe_newest(runs: Sequence[Run]) -> str:
    if not runs:
        return "they have none"
    newest = [f"{each.name} ({each.run_id})" if each.name != each.run_id else each.run_id for each in reversed(runs)]
    return f"the newest of {number_of(len(runs), 'run')}: {', '.join(newest[:MAX_NAMED])}"


def list_runs(inventory: str | Path | None = None, *, finished: bool = False) -> dict[Run, RunStatus]:
    """Your runs on the hosts of the inventory and their states, the newest last, no matter which machine started them.

    `inventory`: by default, $DDP_ORCH_INVENTORY, ./inventory.yaml, or that of the newest run. `finished`: also runs
    that have ended. Raises UnreachableError if a host does not answer.
    """
    place = None if inventory is None else os.fspath(inventory)
    words = ["ps", *(["--all"] if finished else []), *([] if place is None else [f"--inventory={place}"])]
    return {_handle(run, place): read_status(run) for run in command_line.call_json(words)}


def _handle(run: Mapping[str, Any], place: str | None) -> Run:
    # commands find the hosts of a source such as @slurm again: they are remembered
    is_file = place is not None and not place.startswith("@")
    return Run(run["run_id"], run["name"], str(Path(place).absolute()) if place and is_file else None)


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The words of `up` that call a function."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or file is None or not file.endswith(".py"):
        raise UsageError(f"{name}: the hosts need the file of the function; define it in a .py file, and import it")
    if not _is_at_top(module, name):
        raise UsageError(f"{name}: the hosts find a function by its name; define it at the top level of {file}")
    try:
        arguments = json.dumps({"args": list(args), "kwargs": dict(kwargs)})
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the arguments of {name} are sent as JSON: {error}. Pass numbers, text, lists and dicts; "
            "for anything else, pass the name of a file"
        ) from error
    if len(arguments) > MAX_ARGUMENTS:
        raise UsageError(
            f"the arguments of {name} have {len(arguments):,} bytes as JSON; at most {MAX_ARGUMENTS:,} are allowed. "
            "Write them to a file in the folder of the code, and pass its name"
        )
    # the program itself is __main__; on the hosts it is a module, so that only its functions run
    module_name = Path(file).stem if module.__name__ == "__main__" else module.__name__
    return [f"--call={module_name}:{name}", "--", os.path.relpath(file), arguments]


def _is_at_top(module: ModuleType, name: str) -> bool:
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    return callable(target) and not inspect.isclass(target)


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _inventory_file(inventory: str | Path | Mapping[str, Any] | None) -> str | None:
    """A file for `-i`. Commands need it as long as the run exists: a mapping is written to the user's state folder."""
    if inventory is None:
        return None
    if not isinstance(inventory, Mapping):
        return os.fspath(inventory)
    text = json.dumps(inventory, indent=2)  # which is YAML
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "ddp-orch" / "inventories"
    file = state / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_suffix(f".{os.getpid()}.new")
    temporary.touch(mode=0o600)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
    return str(file)
