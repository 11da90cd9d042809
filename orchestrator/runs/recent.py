"""Remember the newest runs started from this machine, and their inventories. Losing it is harmless: hosts know runs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ..inventory.run_ids import SUFFIX

MAX_RUNS = 200


@dataclass(frozen=True)
class StartedRun:
    """A run that was started from this machine."""

    run_id: str
    name: str
    inventory: str
    """The absolute path of its inventory, or of a copy with the hosts that a source such as @slurm gave."""
    code: str = ""
    """The folder here in which the sent code would start; "" if no code was sent."""
    folder: str = ""
    """The folder at which relative paths in the inventory start; "": that of `inventory`."""


@dataclass(frozen=True)
class StartCommand:
    """How `up` was called for a run."""

    options: Mapping[str, Any]
    """The fields of UpOptions."""
    folder: str
    """The current folder of that call."""
    inventory: str
    """See StartedRun."""
    inventory_changed: bool
    """Whether that file is another one than then."""
    any_of: bool
    """Whether it chose hosts that were free (`any 2 of [...]`)."""


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "newest.json"


def remember(inventory: str, run_id: str, name: str, code: str = "", folder: str = "", copy: str | None = None) -> None:
    """Add a run. Never fails: the run has started, whether the disk is full or the home is read-only.

    `copy`: the text of an inventory to keep for the run, because `inventory` will not give the same hosts again.
    """
    file = _file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(file):
            path = Path(inventory).resolve() if copy is None else file.parent / "inventories" / f"{run_id}.yaml"
            if copy is not None:
                path.parent.mkdir(exist_ok=True, mode=0o700)
                _write(path, copy)
            known = [StartedRun(run_id, name, str(path), code, folder), *newest()]
            _write(file, json.dumps({"runs": [astuple(run) for run in known[:MAX_RUNS]]}))
            for run in known[MAX_RUNS:]:
                if Path(run.inventory).parent == file.parent / "inventories":
                    Path(run.inventory).unlink(missing_ok=True)


def remember_command(run_id: str, options: Mapping[str, Any], *, any_of: bool = False) -> None:
    """Keep how `up` was called for a run that `remember` has added, until its entry is dropped. Never fails.

    `options`, `any_of`: see StartCommand.
    """
    known = started(run_id)
    if known is None:
        return
    with contextlib.suppress(OSError):
        file = _command_file(run_id)
        file.parent.mkdir(exist_ok=True, mode=0o700)
        kept = {
            "options": options,
            "folder": str(Path.cwd()),
            "inventory_sha256": _digest(known.inventory),
            "any_of": any_of,
        }
        _write(file, json.dumps(kept))
        runs = {run.run_id for run in newest()}
        for other in file.parent.glob("*.json"):
            if other.stem not in runs:
                other.unlink(missing_ok=True)


def command_of(run_id: str) -> StartCommand | None:
    """How a run was started from this machine; None: unknown."""
    known = started(run_id)
    try:
        kept = json.loads(_command_file(run_id).read_text(encoding="utf-8"))
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in kept["options"].items()}
        folder, digest, any_of = str(kept["folder"]), kept["inventory_sha256"], kept.get("any_of") is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if known is None:
        return None
    return StartCommand(options, folder, known.inventory, _digest(known.inventory) != digest, any_of)


def _command_file(run_id: str) -> Path:
    return _file().parent / "commands" / f"{run_id}.json"


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _write(file: Path, text: str) -> None:
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """So that two runs that start at the same moment are both remembered."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def newest() -> list[StartedRun]:
    """The remembered runs, the newest first."""
    try:
        runs = json.loads(_file().read_text())["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    entries = []
    for run in runs if isinstance(runs, list) else ():
        match run:
            case [str(), str(), str(), *rest] if len(rest) <= 2 and all(isinstance(each, str) for each in rest):
                entries.append(StartedRun(*run))
    return entries


def started(run_id: str) -> StartedRun | None:
    return next((run for run in newest() if run.run_id == run_id), None)


def find(run: str, inventory: str) -> StartedRun | None:
    """The newest run with exactly this id or name that was started with the inventory of this path."""
    path = str(Path(inventory).resolve())
    return next((known for known in newest() if run in (known.run_id, known.name) and known.inventory == path), None)


def inventories_of(run: str) -> list[str]:
    """The inventories of the runs that `run` may mean (as in `choice.choose`), that of the newest run first."""
    known = newest()
    matches = [entry for entry in known if run in (entry.run_id, entry.name)]
    matches = matches or [entry for entry in known if run and entry.run_id.startswith(run)]
    matches = matches or [entry for entry in known if len(run) >= SUFFIX and entry.run_id.endswith(run)]
    return [entry.inventory for entry in matches if Path(entry.inventory).exists()]


def newest_inventory() -> str | None:
    return next((run.inventory for run in newest()[:1] if Path(run.inventory).exists()), None)
