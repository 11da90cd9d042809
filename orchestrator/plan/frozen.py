"""Keep the code of a run that waits as it is now, whatever is edited meanwhile. Reads and writes files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from .snapshot import Snapshot


@contextmanager
def copied(snapshot: Snapshot | None) -> Iterator[Snapshot | None]:
    """The same snapshot, with its files in a temporary folder. Raises UsageError if one has changed, or none fits."""
    if snapshot is None or not snapshot.files:
        yield snapshot
        return
    with tempfile.TemporaryDirectory(prefix="ddp-orch-code-") as folder:
        root = Path(folder)
        for entry in snapshot.files:
            copy = root / entry.path
            data = b"" if entry.target is not None else snapshot.read(entry)
            try:
                copy.parent.mkdir(parents=True, exist_ok=True)
                if entry.target is not None:
                    copy.symlink_to(entry.target)
                else:
                    copy.write_bytes(data)
            except OSError as error:
                raise UsageError(f"the code cannot be copied to {folder}: {error.strerror}") from error
        yield replace(snapshot, root=root)
