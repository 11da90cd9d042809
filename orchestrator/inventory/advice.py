"""The command lines that messages tell people to type: whole, quoted, with the inventory unless it is the default."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .model import STDIN, default_path
from .run_ids import RUN_NAME

POSITIONAL = frozenset(("bench", "check", "config", "exec", "notify", "prune", "ps", "setup", "trust", "up"))
"""Commands that have INVENTORY as an argument; the others have -i."""

AGAIN = "< INVENTORY"
"""At the end of a command line that reads the inventory from stdin."""


def command(name: str, *words: str, inventory: str) -> str:
    """`ddp-orch NAME WORDS...`, to be pasted where the program was called.

    An inventory that came on stdin is to be given there again: `< INVENTORY`.
    """
    path = _unless_default(inventory)
    given = path if name in POSITIONAL else (("-i", *path) if path else ())
    line = shlex.join(["ddp-orch", name, *((*given, *words) if name in POSITIONAL else (*words, *given))])
    return f"{line} {AGAIN}" if inventory == STDIN else line


def complete_commands(text: str, inventory: str) -> str:
    """Advice of modules that do not know how the program was called: `ddp-orch NAME [--FLAG] INVENTORY`, made whole."""

    def whole(match: re.Match[str]) -> str:
        return command(match[1], *match[2].split(), inventory=inventory)

    return re.sub(r"ddp-orch (\w+)((?: --\w+)*) INVENTORY", whole, text)


class Run(Protocol):
    @property
    def run_id(self) -> str: ...

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class AboutRun:
    """Makes the commands that concern one run."""

    run: str
    """As it is called on a command line."""
    inventory: str

    def command(self, name: str, *options: str) -> str:
        return command(name, *options, self.run, inventory=self.inventory)

    def of_all(self, name: str, *options: str) -> str:
        """A command that names no run."""
        return command(name, *options, inventory=self.inventory)


def about(run: Run, runs: Iterable[Run], inventory: str) -> AboutRun:
    """By the run's name, unless a newer one of these `runs` (the newest last) has it too."""
    newest = [one.run_id for one in runs if one.name == run.name][-1:]
    named = RUN_NAME.fullmatch(run.name) and newest in ([], [run.run_id])
    return AboutRun(run.name if named else run.run_id, inventory)


def _unless_default(path: str) -> tuple[str, ...]:
    default = default_path(os.environ)
    if default is not None and Path(default).resolve() == Path(path).resolve():
        return ()
    here = Path.cwd()
    if Path(path).is_absolute() and Path(path).is_relative_to(here):
        path = str(Path(path).relative_to(here))
    return (path,)
