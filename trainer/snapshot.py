"""Snapshots: the state of a training in a file, whole or not there at all. Unpickles only tensors and plain values.

A file is named `step-STEP-DIGEST.pt`, DIGEST being the first 16 digits of the SHA-256 of its content. So one rename
publishes both, and a file that was cut short or changed is known by its name. `torch.load(file, weights_only=True)`
reads it.

The hosts need not share a disk: one process of every node writes, and at the start the newest snapshot that any node
has is handed to all, so that a host which is new to the run needs no file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
from pathlib import Path
from typing import Any

import torch

from trainer.world import World, print_line

KEEP = 2  # steps: should the newest file turn out to be damaged, there is the one before


def save(folder: Path, state: dict[str, Any], world: World) -> None:
    """Write `state`, whose "step" orders it, if this is the process of its node that writes."""
    if world.local_rank != 0:
        return
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    path = folder / f"step-{state['step']:09d}-{_digest(content)}.pt"
    # The name is this process's own: on a shared disk, those of the other nodes write here too.
    aside = folder / f".{socket.gethostname()}-{os.getpid()}.tmp"
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    _fsync_folder(folder)  # only with its folder does the rename reach the disk
    kept = sorted({_step(each) for each in _snapshots(folder)})[-KEEP:]
    for each in _snapshots(folder):
        if _step(each) not in kept:
            each.unlink(missing_ok=True)  # on a shared disk, another node may have been faster


def load_newest(folder: Path, world: World) -> dict[str, Any] | None:
    """The newest undamaged snapshot of all nodes, the same on all ranks; None if there is none."""
    step, content = -1, b""
    if world.local_rank == 0:
        for leftover in folder.glob(".*.tmp"):  # of a process killed while it wrote; at the start nobody writes
            leftover.unlink(missing_ok=True)
        step, content = _newest(folder)
    steps = world.gather(step)
    newest = max(steps)
    if newest < 0:
        return None
    received = world.broadcast(content, source=steps.index(newest))
    state: dict[str, Any] = torch.load(io.BytesIO(received), map_location="cpu", weights_only=True)
    return state


def _newest(folder: Path) -> tuple[int, bytes]:
    for path in sorted(_snapshots(folder), reverse=True):
        content = path.read_bytes()
        if path.stem.endswith("-" + _digest(content)):
            return _step(path), content
        # Renamed, so that it does not count as one of those to keep; not deleted, as somebody will want to know why.
        aside = path.with_name(path.name + ".damaged")
        print_line(f"DAMAGED snapshot on {socket.gethostname()}, not used, kept as {aside}")
        with contextlib.suppress(FileNotFoundError):
            path.replace(aside)
    return -1, b""


def _snapshots(folder: Path) -> list[Path]:
    return list(folder.glob("step-*-*.pt"))


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
