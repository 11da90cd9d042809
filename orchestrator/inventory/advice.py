"""Make the command lines in messages: complete and quoted, with the inventory unless it is the default."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .model import Inventory, default_path
from .run_ids import RUN_ID, RUN_NAME
from .sources import reference
from .text_files import STDIN

POSITIONAL = frozenset(("bench", "check", "config", "exec", "gpus", "notify", "prune", "ps", "setup", "trust", "up"))
"""Commands that have INVENTORY as an argument; the others have -i."""

AGAIN = "< INVENTORY"
"""At the end of a command line that reads the inventory from stdin."""


def command(name: str, *words: str, inventory: str, folder: Path | None = None) -> str:
    """`ddp-orch NAME WORDS...`, which works in `folder`. None: the current one.

    With a folder, `inventory` is absolute or a source. An inventory that came from stdin has to be passed there
    again: `< INVENTORY`.
    """
    path = _unless_default(inventory, folder or Path.cwd())
    arguments = (*path, *words) if name in POSITIONAL else (*words, *(("-i", *path) if path else ()))
    line = shlex.join(["ddp-orch", name, *arguments])
    return f"{line} {AGAIN}" if inventory == STDIN else line


def complete_commands(text: str, inventory: str) -> str:
    """Replace `ddp-orch NAME [--FLAG] INVENTORY` in a text by the complete command line."""

    def complete(match: re.Match[str]) -> str:
        return command(match[1], *match[2].split(), inventory=inventory)

    return re.sub(r"ddp-orch (\w+)((?: --\w+)*) INVENTORY", complete, text)


def reference_of(inventory: Inventory) -> str:
    """What stands for an inventory in the other functions here: if its hosts come from a source, that source."""
    return inventory.path if reference.is_source(inventory.path) else inventory.source or inventory.path


class Run(Protocol):
    @property
    def run_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def unfinished(self) -> bool: ...


@dataclass(frozen=True)
class AboutRun:
    """Makes command lines about one run."""

    run: str
    """Its name or id on the command line."""
    inventory: str

    def command(self, name: str, *options: str) -> str:
        if reference.is_source(self.inventory):  # this machine remembers the inventory of the run (runs/recent.py)
            return shlex.join(["ddp-orch", name, *options, self.run])
        return command(name, *options, self.run, inventory=self.inventory)

    def of_all(self, name: str, *options: str) -> str:
        """A command line about all runs."""
        return command(name, *options, inventory=self.inventory)


def about(run: Run, runs: Iterable[Run], inventory: str) -> AboutRun:
    """Name the run by its name, or by its id if a newer or an unfinished one of `runs` (the newest last) has it too."""
    same = [other for other in runs if other.name == run.name]
    is_newest = not same or same[-1].run_id == run.run_id
    is_only = is_newest and not any(other.unfinished for other in same if other.run_id != run.run_id)
    return AboutRun(reference_to(run.run_id, run.name) if is_only else run.run_id, inventory)


def reference_to(run_id: str, name: str) -> str:
    """The name of a run, or its id if that is clearer. One that continues a run without a name has its id as a name."""
    return name if RUN_NAME.fullmatch(name) and not RUN_ID.fullmatch(name) else run_id


def _unless_default(path: str, folder: Path) -> tuple[str, ...]:
    default = default_path(os.environ, folder)
    if default == path:
        return ()
    if reference.is_source(path):
        return reference.parse(path).words
    if default is not None and (folder / default).resolve() == Path(path).resolve():
        return ()
    if Path(path).is_absolute() and Path(path).is_relative_to(folder):
        path = str(Path(path).relative_to(folder))
    return (path,)
