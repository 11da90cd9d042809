"""A command on a host over a bare channel, without the node program: its output, and how it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ..errors import UnreachableError
from ..ssh.pipe import Pipe

START_WINDOW = 30.0  # s for a host to start a command
STATUS_WINDOW = 5.0  # s for the exit status after the end of the output
MAX_OUTPUT = 16 << 20  # bytes of stdout that are kept


@dataclass(frozen=True)
class Output:
    """The result of a command on a host."""

    status: int
    stdout: str
    stderr: str
    left_out: int = 0
    """Bytes of stdout after the first MAX_OUTPUT."""


@dataclass
class StartedCommand:
    """A command line that runs on a host or is being started."""

    name: str
    """The host's."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is started, while it is ended, and while its connection is closed."""
    pipe: Pipe | None = None


Listener = Callable[[str, bytes], None]
"""Gets the name of a stream, stdout or stderr, and what a command has written to it. Other threads call it."""


class CutOffError(UnreachableError):
    """It is not known how a command ended."""

    def __init__(self, message: str, stdout: str, stderr: str) -> None:
        super().__init__(message)
        self.stdout, self.stderr = stdout, stderr


def read_output(name: str, pipe: Pipe, listener: Listener | None) -> Output:
    """Raises CutOffError."""
    kept = bytearray()
    size = 0
    if listener is not None:
        pipe.listen_to_stderr(partial(listener, "stderr"))
    while data := pipe.recv(1 << 16, None):
        if listener is not None:
            listener("stdout", data)
        size += len(data)
        kept += data[: MAX_OUTPUT - len(kept)]
    status = pipe.exit_status(STATUS_WINDOW)
    stdout, stderr = _text(bytes(kept)), _text(pipe.stderr())
    if status is None:
        raise CutOffError(f"{name}: the connection was lost, or a signal ended the command", stdout, stderr)
    return Output(status, stdout, stderr, size - len(kept))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
