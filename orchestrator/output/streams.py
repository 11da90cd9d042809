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


class _Writer(io.BufferedWriter):
    """Also writes all to a terminal or pipe that another program has made non-blocking.

    The raw stream is one in C: Ctrl-C must not end its method after it has written, or the buffer would write it again.
    """

    def __init__(self, descriptor: int, name: str, *, buffered: bool) -> None:
        super().__init__(io.FileIO(descriptor, "w", closefd=False))
        self._stream = name
        self._is_buffered = buffered

    def write(self, data: ReadableBuffer, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while True:
            try:
                super().write(rest)
                break
            except BlockingIOError as error:
                rest = rest[error.characters_written :]
                self._wait()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputError(f"cannot write to {self._stream}: {error.strerror}") from error
        if not self._is_buffered:
            self.flush()
        return size

    def flush(self) -> None:
        while True:
            try:
                return super().flush()
            except BlockingIOError:
                self._wait()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputError(f"cannot write to {self._stream}: {error.strerror}") from error

    def _wait(self) -> None:
        select.select([], [self], [])


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
    return io.TextIOWrapper(
        _Writer(stream.fileno(), name, buffered=not stream.write_through),  # write_through: python -u
        encoding=stream.encoding,
        errors="backslashreplace",  # a character that the locale lacks must not end a command
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
