"""Modules of the sent code that Python does not look for, as they are not beside the script. Reads files only."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..inventory import advice
from ..inventory.sources import reference
from ..inventory.text_files import STDIN
from . import python_files
from .snapshot import Snapshot

ROOTS = (".", "src", "..")
"""Folders that people put their packages in, from the one in which the run starts."""
ABOVE = 3
"""How many folders above the one in which the user is may have the module that is to be started."""


def find_root(module: str, workdir: Path) -> str | None:
    """Which of ROOTS has a module, with all the parts of its name. `workdir`: the folder in which the run starts."""
    return next((root for root in ROOTS if _has_module(workdir / root, module.split("."))), None)


def _has_module(folder: Path, parts: Sequence[str]) -> bool:
    path = folder.joinpath(*parts)
    return path.with_name(f"{path.name}.py").is_file() or any(path.glob("*.py"))


def advise(root: str, script: str | None) -> str:
    """How to start the script so that it finds the modules in `root`. `script`: from the same folder; None: unknown."""
    names = script.removesuffix(".py").split("/") if script and root == "." else []
    start = f", or start it as `-m {'.'.join(names)}`" if names and all(name.isidentifier() for name in names) else ""
    return f"Add `-e PYTHONPATH={shlex.quote(root)}` (a path from the folder in which the run starts){start}."


def advise_parent(words: Sequence[str], folder: Path, inventory: str) -> str | None:
    """How to start a module from a folder above `folder`, which has it; None if no such folder has it.

    `words`: the module and its arguments; `inventory`: the path of the inventory or another source.
    """
    first, *_ = parts = words[0].split(".")
    parent = next((above for above in folder.parents[:ABOVE] if has_file(parts, above)), None)
    if parent is None:
        return None
    is_file = inventory != STDIN and not reference.is_source(inventory)
    path = os.path.normpath(Path.cwd() / inventory) if is_file else inventory
    start = advice.command("up", "--", "-m", *words, inventory=path, folder=parent)
    up = os.path.relpath(parent, folder)
    what = f"{first}/ is the folder that you are in" if parent / first == folder else f"{first} is in {up}"
    return f"{what}. Start it from {up}: cd {up} && {start}"


def has_file(parts: Sequence[str], folder: Path) -> bool:
    """Whether `-m` finds the module with these parts of its name in the folder."""
    path = folder.joinpath(*parts)
    return path.with_name(f"{path.name}.py").is_file() or (path / "__main__.py").is_file()


def advise_module(script: Path, root: Path) -> str | None:
    """How to start a script so that it finds the modules in `root`, a folder above it that is in no repository."""
    names = script.relative_to(root).with_suffix("").parts
    if not all(name.isidentifier() for name in names):
        return None
    here = os.path.relpath(root)
    where = "" if here == "." else f" in {here}"
    repository = f"run `git init` {where.strip() or 'here'} and add `-e PYTHONPATH={shlex.quote(here)}`"
    return f"Start it as `-m {'.'.join(names)}`{where}, or {repository}"


def warn(snapshot: Snapshot, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A warning for each package that every start of the script imports and that is elsewhere in the code.

    `command`: the arguments of python; `environments`: the variables of each host.
    """
    if command[:1] != ("-u",) or not command[1].endswith(".py"):
        return
    if all("PYTHONPATH" in environment for environment in environments):
        return
    script, workdir = snapshot.root / snapshot.script, snapshot.root / snapshot.workdir
    roots = [Path(os.path.normpath(workdir / root)) for root in ROOTS]
    sent = {snapshot.root / entry.path for entry in snapshot.files}
    for found in python_files.find_distant(script, roots):
        root = os.path.relpath(found.folder, workdir)
        file = found.folder / found.module
        if sent.isdisjoint({file.with_suffix(".py"), file / "__init__.py"}):
            continue
        place = f"{os.path.relpath(found.place.path, workdir)}:{found.place.line}"
        name = os.path.relpath(file, workdir) + ("/" if file.is_dir() else ".py")
        yield (
            f"{place} imports {found.module}, but Python looks for it beside the script and among the installed "
            f"packages, and not where {name} is. {advise(root, os.path.relpath(script, workdir)).rstrip('.')}"
        )
