"""Explain a module that the hosts lack, but that is code on this machine: why it was not sent. Reads files only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from ..answers.facts import Facts, Python
from ..checks.python import PACKAGES, Absence
from ..inventory import paths
from ..plan import git, import_roots, snapshot
from ..plan.plan import Code, Plan

NEAR = 0.8  # of 1: as utlis is to utils. Less, and einops would be taken for ops


def explain(plan: Plan, facts: Mapping[str, Facts]) -> dict[str, Absence]:
    """By module: what is known here about those that the script imports and that the hosts of the plan lack."""
    if plan.code is None:
        return {}
    lacking: set[str] = set()
    for node in plan.nodes:
        python = facts[node.host.name].python if node.host.name in facts else None
        if isinstance(python, Python) and python.script and not node.host.workdir:
            lacking.update(filter(str.isidentifier, python.script.missing))
    found = {module: _explain(module, plan, plan.code) for module in sorted(lacking - {"torch"})}
    return {module: absence for module, absence in found.items() if absence}


def search_path(code: Code, path: str) -> set[str]:
    """The modules in those folders of PYTHONPATH that are in the code: the hosts do not have it when they are asked."""
    workdir = Path(code.root) / code.cwd
    folders = [workdir / word for word in path.split(":") if word and not Path(word).is_absolute()]
    return {file.parts[len(folder.parts)].partition(".")[0] for folder in folders for file in _python_files(folder)}


def _python_files(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.py")
    yield from folder.glob("*/*.py")


def why_not_sent(module: str, folder: Path, workdir: Path, sync_base: Path) -> str | None:
    """Why a module in `folder` on this machine is not sent, and how to send it; None if no rule excludes it."""
    for path in _files(module, folder):
        if why := snapshot.why_not_sent(workdir, os.path.relpath(path, workdir), sync_base):
            return why
    return None


def _explain(module: str, plan: Plan, code: Code) -> Absence | None:
    root = Path(code.root)
    workdir, sync_base = root / code.cwd, paths.folder(plan.inventory).absolute()
    name = plan.nodes[0].command[2]
    script = name if name.endswith(".py") else None
    if name == "-m" and (above := import_roots.advise_parent(plan.nodes[0].command[3:], workdir, plan.inventory.path)):
        return Absence("not sent", above)
    folders = tuple(dict.fromkeys([(workdir / (script or "train.py")).parent, workdir]))
    for folder in folders:
        if why := why_not_sent(module, folder, workdir, sync_base):
            return Absence("not sent", why)
        for path in _files(module, folder):
            sync = plan.inventory.run.sync
            listed = ", ".join([*([sync] if isinstance(sync, str) else sync), os.path.relpath(path, sync_base)])
            here = f"{os.path.relpath(path, workdir)} exists on this machine but is not sent"
            return Absence("not sent", f"{here}. Add it to run.sync: [{listed}]")
    place = import_roots.find_root(module, workdir)
    if place is not None and (workdir / place).resolve().is_relative_to(root):
        return Absence("not beside it", import_roots.advise(place, script).rstrip("."))
    for path in _files(module, root.parent):
        if path.is_file() or (path / "__init__.py").is_file():
            here = f"{os.path.relpath(path, workdir)} exists on this machine but is not sent: it is not in {root}"
            start = _advise_module(plan, workdir / script, root) if script else None
            return Absence("not sent", f"{here}. {start or 'Copy it into that folder, beside the script'}")
    own = sorted({name for folder in folders for name in _modules(folder)})
    if module not in PACKAGES and (near := get_close_matches(module, own, 1, NEAR)):
        otherwise = f"if not, set `python` or `setup` to an environment that has {module}"
        return Absence("not installed there", f"did you mean {near[0]}, which is code of yours? {otherwise}")
    return None


def _advise_module(plan: Plan, script: Path, root: Path) -> str | None:
    """How to send the folder above `root` too, if what is sent is not a repository, but the folder of the script."""
    is_folder = snapshot.AUTO in plan.inventory.run.sync and not git.has_repository(root)
    return import_roots.advise_module(script, root.parent) if is_folder else None


def _files(module: str, folder: Path) -> Iterator[Path]:
    """The file or the package of that name, and a file in it: a rule may exclude the files but not the folder."""
    file, package = folder / f"{module}.py", folder / module
    if file.is_file():
        yield file
    inner = sorted(package.glob("*.py"))
    if inner:
        yield package
        yield inner[0]


def _modules(folder: Path) -> Iterator[str]:
    for path in folder.glob("*"):
        if path.suffix == ".py" or (path / "__init__.py").is_file():
            yield path.stem
