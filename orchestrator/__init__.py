"""ddp-orch's controller: reads an inventory, reaches every host over SSH, starts, looks and commands.

cli     declares the commands, together with commands/run_commands.py and change_commands.py
errors  the errors that users see, each with its exit code

The package api is the Python interface: `from orchestrator import run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import LogLine, NodeStatus, Run, RunStatus, find_run, list_runs, run

__version__ = "0.1.0"
__all__ = ["LogLine", "NodeStatus", "Run", "RunStatus", "__version__", "find_run", "list_runs", "run"]


def __getattr__(name: str) -> Any:
    # imported late: the command line needs none of it
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import api

    return getattr(api, name)
