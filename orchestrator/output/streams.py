"""Stdout and stderr of the program, which raise `OutputError` when they cannot be written, as on a full disk."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING

from ..errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Descriptor(io.FileIO):
    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._stream = name

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data`, also to a terminal or pipe that another program has made non-blocking."""
        rest = memoryview(data).cast("B")
        try:
            while rest:
                written = super().write(rest)
                if written is None:
                    select.select([], [self], [])
                else:
                    rest = rest[written:]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {self._stream}: {error.strerror}") from error
        return memoryview(data).nbytes


def set_up() -> None:
    """Replace sys.stdout and sys.stderr, unless a caller of this program has replaced them.

    Streams that were closed when the program was started are the null device from now on.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _wrap(stream, name))


def _wrap(stream: io.TextIOWrapper, name: str) -> io.TextIOWrapper:
    descriptor = _Descriptor(stream.fileno(), name)
    return io.TextIOWrapper(
        descriptor if stream.write_through else io.BufferedWriter(descriptor),  # as python -u
        encoding=stream.encoding,
        errors="backslashreplace",  # a character that the locale lacks must not end a command
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
