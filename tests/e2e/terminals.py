"""A terminal of its own for a process, which loses it when it is closed."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lab.waiting import wait_until

SESSION = ("setsid", "--ctty")


class Terminal:
    """What a process shows on its terminal."""

    def __init__(self, descriptor: int, process: subprocess.Popen[Any]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.shown = ""

    def wait_for(self, words: str, seconds: float = 60) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            if match := re.search(words, self.shown):
                return match
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.shown += os.read(self._descriptor, 65536).decode(errors="replace")
            return None

        try:
            return wait_until(look, seconds, f"the terminal shows {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}. It shows: {self.shown}") from error

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


@contextmanager
def terminal(start: Callable[[int], subprocess.Popen[Any]]) -> Iterator[Terminal]:
    """`start`: starts a command that begins with `SESSION`, with this descriptor as stdin, stdout and stderr."""
    ours, theirs = pty.openpty()
    process = start(theirs)
    os.close(theirs)
    terminal = Terminal(ours, process)
    try:
        yield terminal
    finally:
        terminal.close()
        if process.poll() is None:
            process.kill()
        process.wait()
