"""Remember the newest runs started from this machine, and their inventories. Losing it is harmless: hosts know runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from ..inventory.run_ids import SUFFIX

MAX_RUNS = 200


@dataclass(frozen=True)
class StartedRun:
    """A run that was started from this machine."""

    run_id: str
    name: str
    inventory: str
    """Its absolute path."""
    code: str = ""
    """The folder here in which the sent code would start; "" if no code was sent."""


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "newest.json"


def remember(inventory: str, run_id: str, name: str, code: str = "") -> None:
    """Add a run. Never fails: the run has started, whether the disk is full or the home is read-only."""
    file = _file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(file):
            runs = [StartedRun(run_id, name, str(Path(inventory).resolve()), code), *newest()][:MAX_RUNS]
            temporary = file.with_suffix(".new")
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps({"runs": [astuple(run) for run in runs]}))
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
            case [str(run_id), str(name), str(inventory), str(code)]:
                entries.append(StartedRun(run_id, name, inventory, code))
            case [str(run_id), str(name), str(inventory)]:
                entries.append(StartedRun(run_id, name, inventory))
    return entries


def started(run_id: str) -> StartedRun | None:
    return next((run for run in newest() if run.run_id == run_id), None)


def inventories_of(run: str) -> list[str]:
    """The inventories of the runs that `run` may mean (as in `registry.choose`), that of the newest run first."""
    known = newest()
    matches = [entry for entry in known if run in (entry.run_id, entry.name)]
    matches = matches or [entry for entry in known if run and entry.run_id.startswith(run)]
    matches = matches or [entry for entry in known if len(run) >= SUFFIX and entry.run_id.endswith(run)]
    return [entry.inventory for entry in matches if Path(entry.inventory).exists()]


def newest_inventory() -> str | None:
    return next((run.inventory for run in newest()[:1] if Path(run.inventory).exists()), None)
