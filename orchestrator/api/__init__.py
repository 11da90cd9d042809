"""The Python interface: start scripts and functions, and handle their runs. `import orchestrator` offers these names.

start         `run`: start a script or a function
handle        `Run`: follow, wait, fetch, stop
command_line  runs `ddp-orch` in a process of its own, and turns its exit code into an exception
"""

from .handle import LogLine, NodeStatus, Run, RunStatus
from .start import find_run, list_runs, run

__all__ = ["LogLine", "NodeStatus", "Run", "RunStatus", "find_run", "list_runs", "run"]
