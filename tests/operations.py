"""All operations that a host can be asked for."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import orchestrator.answers
from orchestrator.answers.operation import Operation

MODULES = [
    importlib.import_module(f"orchestrator.answers.{module.name}")
    for module in pkgutil.iter_modules(orchestrator.answers.__path__)
]
OPERATIONS: list[Operation[Any]] = [
    value for module in MODULES for value in vars(module).values() if isinstance(value, Operation)
]
