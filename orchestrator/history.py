"""The newest runs started from this machine, and the inventory of the last. A convenience: the hosts know the runs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

MOST = 20  # runs remembered


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ddp-orch" / "newest.json"


def remember(inventory: str, run_id: str, name: str) -> None:
    """Never fails: a full disk or a read-only home must not end a run that has started."""
    file = _file()
    runs = [(run_id, name), *newest_runs()][:MOST]
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"inventory": str(Path(inventory).resolve()), "runs": runs}))
        aside.replace(file)


def newest_inventory() -> str | None:
    path = _read().get("inventory")
    return path if isinstance(path, str) and Path(path).exists() else None


def newest_runs() -> list[tuple[str, str]]:
    """[(id, name)], the newest first."""
    found = []
    runs = _read().get("runs")
    for one in runs if isinstance(runs, list) else ():
        match one:
            case [str(run_id), str(name)]:
                found.append((run_id, name))
    return found


def _read() -> dict[str, Any]:
    try:
        said = json.loads(_file().read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
