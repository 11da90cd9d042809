"""What a tree must know of the engine that starts its containers: its own processes, and what its exit status means."""

import os
import signal
from typing import Callable, List

from ..host import engines, processes


class ContainerEngine:
    """`remove`: removes what is left of the containers of the attempt, and returns whether that is done."""

    def __init__(self, engine: str, run_id: str, remove: Callable[[], bool]) -> None:
        self._row = engines.ENGINES[engine]
        self._run_id = run_id
        self._remove = remove

    def remove(self) -> bool:
        return not self._row.records or self._remove()

    def find_elsewhere(self) -> List[processes.Stat]:
        """The processes of the run that a daemon has started: they are no descendants of the guard."""
        if not self._row.is_daemon:
            return []
        members = [process for process, mark in processes.marks().items() if mark == self._run_id]
        found = [processes.stat(process.pid) for process in members]
        return [status for status in found if status is not None and status.state not in "ZX"]

    def is_helper(self, pid: int) -> bool:
        """Whether it ends by itself after the container."""
        return processes.name(pid) in self._row.helpers

    def is_keeper(self, pid: int) -> bool:
        """Whether it outlives all containers."""
        return processes.name(pid) in self._row.keepers

    def without_shims(self, members: List[processes.Stat]) -> List[processes.Stat]:
        """Those that may be continued: a shim ends the container then."""
        shim = self._row.shim
        return [each for each in members if not shim or not processes.command(each.process.pid).startswith(shim)]

    def could_not_start(self, code: int, has_begun: bool) -> bool:
        """`has_begun`: the first process in the container has registered."""
        return code in self._row.failed and not has_begun


def status_of_command(status: int) -> int:
    """The wait status of the command, from that of the engine's client, which exits with 128 + the signal."""
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
    return code - 128 if 128 < code < 128 + signal.NSIG else status
