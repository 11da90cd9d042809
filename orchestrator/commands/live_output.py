"""What `exec` shows while CMD runs: each line as it comes, or the newest line of each host in the table of progress."""

from __future__ import annotations

import sys
import threading
import time
from typing import Protocol

from ..errors import OutputError
from ..output.console import Console, hush, number_of
from ..output.lines import Line, LineAssembler
from ..output.terminal import one_line, tame
from ..ui.progress import NoProgress

NEWEST = 400  # bytes of the newest output in which a line is looked for


class LiveOutput(Protocol):
    def take(self, host: str, stream: str, data: bytes) -> None:
        """`stream`: stdout or stderr. Called by many threads."""

    def end(self, host: str) -> None:
        """No more comes from this host."""


class NewestLine:
    """Shows the newest line of each host in the table of progress."""

    def __init__(self, progress: NoProgress) -> None:
        self._progress = progress

    def take(self, host: str, stream: str, data: bytes) -> None:
        lines = data[-NEWEST:].decode("utf-8", "replace").replace("\r", "\n").strip().rpartition("\n")
        if lines[2]:
            self._progress.set_amount(host, one_line(lines[2]).strip())

    def end(self, host: str) -> None:
        self._progress.set_amount(host, "")


class Stream:
    """Prints each line as soon as it is complete, after the name of its host."""

    def __init__(self, console: Console, hosts: int) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._assemblers: dict[tuple[str, str], LineAssembler] = {}
        self.failure: BrokenPipeError | OutputError | None = None
        """Why no more output can be shown. Not raised by `take`: the threads that call it also keep commands going."""
        console.status(f"running on {number_of(hosts, 'host')}")

    def take(self, host: str, stream: str, data: bytes) -> None:
        with self._lock:
            key = (host, stream)
            if key not in self._assemblers:
                self._assemblers[key] = LineAssembler(host, None, stream, 1)
            self._print(self._assemblers[key].feed(data, time.time()))

    def end(self, host: str) -> None:
        with self._lock:
            for (name, _), assembler in self._assemblers.items():
                if name == host:
                    self._print(assembler.flush())

    def _print(self, lines: list[Line]) -> None:
        if not lines or self.failure is not None:
            return
        self._console.status("")
        out = sys.stderr if lines[0].stream == "stderr" else sys.stdout
        try:
            out.write("".join(f"{line.host}: {tame(line.text, colour=False)}\n" for line in lines))
            out.flush()
        except (BrokenPipeError, OutputError) as error:
            hush(out)
            self.failure = error
