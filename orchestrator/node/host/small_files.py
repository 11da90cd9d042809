"""Read small files, most of them the kernel's, and open files that only this user may read."""

import os


def text_of(path: str) -> str:
    """The text of a file, stripped; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def open_private(path: str, flags: int) -> int:
    """An `opener` for open()."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
