"""The process that removes what is left of the containers of an attempt: the guard must not wait for an engine."""

import os
import time
from typing import List

WINDOW = 30.0  # s


class ContainerRemover:
    """`pid`: -1 while it does not run."""

    def __init__(self, argv: List[str]) -> None:
        self.pid = -1
        self._argv = argv
        self._until = 0.0
        self._is_done = False

    def begin(self) -> None:
        """A new attempt begins."""
        self._is_done = False

    def remove(self) -> bool:
        """Start it, if it has not been started. Returns whether it has ended, or takes too long."""
        if self.pid > 0:
            return time.monotonic() > self._until
        if not self._is_done:
            try:
                self.pid = os.posix_spawn(self._argv[0], self._argv, os.environ)
                self._until = time.monotonic() + WINDOW
            except OSError:  # no process or memory to be had
                self._is_done = True
        return self._is_done

    def on_exit(self) -> None:
        self.pid, self._is_done = -1, True
