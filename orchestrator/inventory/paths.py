"""Where relative paths in an inventory start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .model import Inventory
from .sources import reference


def folder(inventory: Inventory) -> Path:
    """The folder at which relative paths in the inventory start."""
    file = reference.parse(inventory.path).file
    return Path(file).resolve().parent if file and Path(file).is_file() else Path.cwd()  # stdin is in no folder


def with_absolute_paths(inventory: Inventory) -> Inventory:
    """The inventory as it can be used from any folder."""
    run, base = inventory.run, folder(inventory)
    script = None if run.script is None else str(base / run.script)
    sync = run.sync
    if isinstance(sync, tuple):
        sync = tuple(path if path.startswith("~") or path == "auto" else str(base / path) for path in sync)
    return replace(inventory, run=replace(run, script=script, sync=sync))
