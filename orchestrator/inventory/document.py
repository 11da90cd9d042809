"""The YAML document of an inventory, or what another file is that was given in its place. No IO."""

from __future__ import annotations

import re
import shlex

from ..errors import InventoryError
from . import foreign_tasks
from .values import describe, shown
from .yaml_source import Map, Scalar, YamlProblem, compose

_INI_SECTION = re.compile(r"^\[[\w.-]+(:\w+)?\]$", re.MULTILINE)
_ACCELERATE = {"compute_environment", "distributed_type"}  # keys that no inventory has


def read(text: str, path: str) -> Map:
    """Raises InventoryError."""
    try:
        root = compose(text)
    except YamlProblem as exc:
        if _INI_SECTION.search(text):
            message = "this is an INI file, as Ansible uses; an inventory is YAML. To use its hosts: "
            raise InventoryError(f"{path}: {message}@ansible:{shlex.quote(path)}") from exc
        raise InventoryError(f"{path}:{exc.mark.line + 1}: {shown(exc.message, 500)}") from exc
    if not isinstance(root, Map):
        problem = "the file is empty" if isinstance(root, Scalar) and root.null else f"got {describe(root)}"
        place = f"{path}:{root.mark.line + 1}"
        raise InventoryError(f"{place}: expected a mapping, for example `hosts: [lovelace, hopper]`; {problem}")
    if other := _other_tool(root, path):
        raise InventoryError(f"{path}:1: {other}")
    return root


def describe_other(text: str, path: str) -> str | None:
    """What a YAML file is that was given in the place of a script, and what to do with it; None: nobody knows."""
    try:
        root = compose(text)
    except YamlProblem:
        return None
    if not isinstance(root, Map):
        return None
    if any(isinstance(key, Scalar) and key.text == "hosts" for key, _ in root.items):
        return f"this is an inventory, not a script. To use it: ddp-orch up {shlex.quote(path)} -- SCRIPT"
    return _other_tool(root, path)


def describe_task(text: str, path: str) -> str | None:
    """What to do with a task or a configuration of another tool; None: it is something else."""
    try:
        root = compose(text)
    except YamlProblem:
        return None
    return _other_tool(root, path) if isinstance(root, Map) else None


def _other_tool(root: Map, path: str) -> str | None:
    """What to do with a file that describes a job of another tool."""
    keys = {key.text for key, _ in root.items if isinstance(key, Scalar)}
    if keys & _ACCELERATE and "hosts" not in keys:
        start = f"ddp-orch up -- accelerate launch --config_file {shlex.quote(path)} SCRIPT"
        return f"this is a configuration of accelerate, not an inventory. To use it: {start}"
    return foreign_tasks.describe_task(root)
