"""Control groups for memory: where they are made and how they end. The only thing of a lab that could outlive it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def parent_and_limit() -> tuple[Path, str]:
    """The group under which this machine makes new ones, and the name of the file that limits one."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (first / "cgroup.procs").exists():
        return first, "memory.limit_in_bytes"
    if (second / "cgroup.procs").exists() and "memory" in (second / "cgroup.subtree_control").read_text().split():
        return second, "memory.max"
    raise RuntimeError("this machine has no control groups for memory")


def removed(group: Path) -> bool:
    """Try to remove a group; it must be empty, which it is a moment after its last process has ended."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
