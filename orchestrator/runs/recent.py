"""The newest runs started from this machine, each with its inventory. A convenience: the hosts know the runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from ..inventory.run_ids import SUFFIX

MOST = 200  # runs remembered


@dataclass(frozen=True)
class Started:
    """A run, the absolute path of the inventory that it was started with, and the folder of its code."""

    run_id: str
    name: str
    inventory: str
    code: str = ""
    """Where the run starts, in the code as it is here; empty if none was sent."""


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "newest.json"


def remember(inventory: str, run_id: str, name: str, code: str = "") -> None:
    """Never fails: a full disk or a read-only home must not end a run that has started."""
    file = _file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(file):
            runs = [Started(run_id, name, str(Path(inventory).resolve()), code), *newest()][:MOST]
            aside = file.with_suffix(".new")
            aside.unlink(missing_ok=True)
            aside.touch(mode=0o600)
            aside.write_text(json.dumps({"runs": [astuple(run) for run in runs]}))
            aside.replace(file)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Two runs may be started at the same moment, and both are to be remembered."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def newest() -> list[Started]:
    """The newest first."""
    try:
        runs = json.loads(_file().read_text())["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    found = []
    for run in runs if isinstance(runs, list) else ():
        match run:
            case [str(run_id), str(name), str(inventory), str(code)]:
                found.append(Started(run_id, name, inventory, code))
            case [str(run_id), str(name), str(inventory)]:
                found.append(Started(run_id, name, inventory))
    return found


def started(run_id: str) -> Started | None:
    return next((run for run in newest() if run.run_id == run_id), None)


def inventories_of(run: str) -> list[str]:
    """Those that runs were started with that `run` may mean, as `registry.choose` takes it; the newest run's first."""
    known = newest()
    named = [one for one in known if run in (one.run_id, one.name)]
    named = named or [one for one in known if run and one.run_id.startswith(run)]
    named = named or [one for one in known if len(run) >= SUFFIX and one.run_id.endswith(run)]
    return [one.inventory for one in named if Path(one.inventory).exists()]


def newest_inventory() -> str | None:
    return next((run.inventory for run in newest()[:1] if Path(run.inventory).exists()), None)
