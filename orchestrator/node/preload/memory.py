"""What others see of this process: its arguments, its name and its mark. Runs in the user's python."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

ARG_START, ARG_END, ENV_START, ENV_END = 45, 46, 47, 48  # in /proc/self/stat, counted from the state


def bounds(first: int, last: int) -> Tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[first]), int(fields[last])


def set_mark(no_mark: str, mark: str, run_id: str) -> None:
    """Make this fork a process of the run: its environment, as others see it, is that of the preloader."""
    import ctypes

    begin, end = bounds(ENV_START, ENV_END)
    variables = ctypes.string_at(begin, end - begin)
    at = variables.find(no_mark.encode() + b"=")
    if at >= 0:
        ctypes.memmove(begin + at, b"%s=%s" % (mark.encode(), run_id.encode()), len(mark) + 1 + len(run_id))


class Title:
    """What `ps` shows of a process: its arguments, which are in its memory, and its name."""

    def __init__(self) -> None:
        import ctypes

        self._begin, end = bounds(ARG_START, ARG_END)
        self._size = end - self._begin
        self._arguments = ctypes.string_at(self._begin, self._size).split(b"\0")
        with open("/proc/self/comm", "rb") as file:
            self._name = file.read().rstrip(b"\n")

    def write(self, words: List[bytes], name: bytes) -> None:
        """Longer arguments are cut: there is no place for them."""
        import ctypes

        arguments = b"\0".join(words)[: self._size - 1].ljust(self._size, b"\0")
        ctypes.memmove(self._begin, arguments, self._size)
        with open("/proc/self/comm", "wb") as file:
            file.write(name)

    def restore(self, argv: Optional[List[str]]) -> None:
        """`argv`: None for that of this process."""
        self.write(self._arguments if argv is None else list(map(os.fsencode, argv)), self._name)
