"""Read a file that a user names, with errors for people. Parses nothing."""

from __future__ import annotations

from pathlib import Path

from ..errors import InventoryError

STDIN = "-"
MAX_BYTES = 4 << 20


def read_text(path: str | Path) -> str:
    """The text of a file, or of stdin for `-`. Raises InventoryError, or FileNotFoundError."""
    try:
        with Path("/dev/stdin" if str(path) == STDIN else path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except IsADirectoryError as exc:
        raise InventoryError(f"{path}: is a directory; pass the inventory file in it") from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
        raise InventoryError(f"{path}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if len(data) > MAX_BYTES:
        raise InventoryError(f"{path}: larger than {MAX_BYTES >> 20} MiB, the limit for an inventory")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InventoryError(f"{path}:{line}: not UTF-8: byte 0x{data[exc.start]:02x}; save the file as UTF-8") from exc
