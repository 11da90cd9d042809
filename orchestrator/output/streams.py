"""Stdout and stderr of the program, which raise `OutputError` when they cannot be written, as on a full disk."""

from __future__ import annotations

import io
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
        try:
            return super().write(data)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {self._stream}: {error.strerror}") from error


def set_up() -> None:
    """Replace sys.stdout and sys.stderr, unless a caller of this program has replaced them."""
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
