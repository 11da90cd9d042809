"""Copy files from the nodes that have them to those that lack them, over the control group."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import ConfigError
from trainer.dist import World

CHUNK = 16 << 20  # bytes of a file that are read at once


def copy_to_all_nodes(path: Path, world: World) -> None:
    """Copy a file from a node that has it to those that lack it. One rank per node receives, and passes on each piece.

    All ranks must call. The ranks send to each other in the control group, as a group of their own would hang: with a
    `device_id`, new_group makes the ranks that are not in it wait in ncclCommSplit (torch 2.4 to 2.13).
    """
    leaders = [rank for rank, local_rank in enumerate(world.gather(world.local_rank)) if local_rank == 0]
    has_file = world.gather(path.exists())
    sources = [rank for rank in leaders if has_file[rank]]
    lacking = [rank for rank in leaders if not has_file[rank]]
    if not lacking or not sources:
        return
    chain = [sources[0], *lacking]
    with world.fail_together():
        try:
            if world.rank == chain[0]:
                _send(path, chain[1], world)
            elif world.rank in chain:
                place = chain.index(world.rank)
                _receive(path, chain[place - 1], chain[place + 1 : place + 2], world)
        except OSError as error:
            raise ConfigError(f"cannot copy the snapshot {path}: {error.strerror or error}") from error


def _send(path: Path, target: int, world: World) -> None:
    """Raises OSError only when all is sent, as the other nodes wait for it: zeros for what cannot be read."""
    size, problem = 0, None
    with contextlib.ExitStack() as stack:
        try:
            size = path.stat().st_size
            file = stack.enter_context(path.open("rb"))
        except OSError as error:
            problem = error
        dist.send(torch.tensor([size]), target, group=world.control)
        for start in range(0, size, CHUNK):
            content = bytearray(min(CHUNK, size - start))
            try:
                if problem is None and file.readinto(content) < len(content):
                    problem = OSError("it is shorter than it was")
            except OSError as error:  # the disk is damaged
                problem = error
            dist.send(torch.frombuffer(content, dtype=torch.uint8), target, group=world.control)
    dist.send(torch.tensor([int(problem is None)]), target, group=world.control)
    if problem is not None:
        raise problem


def _receive(path: Path, source: int, targets: list[int], world: World) -> None:
    """Raises OSError only when all has arrived, as `targets` count on this rank to pass it on.

    A file that its node could not read is not kept. That node raises the error.
    """
    size, is_whole = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    _pass_on(size, source, targets, world)
    aside = path.with_name(f".{path.name}-{socket.gethostname()}.tmp")
    problem: OSError | None = None
    try:
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(exist_ok=True)
                file = stack.enter_context(aside.open("wb"))
            except OSError as error:
                problem = error
            for start in range(0, int(size), CHUNK):
                content = bytearray(min(CHUNK, int(size) - start))
                _pass_on(torch.frombuffer(content, dtype=torch.uint8), source, targets, world)
                try:
                    if problem is None:
                        file.write(content)
                except OSError as error:  # the disk is full
                    problem = error
            _pass_on(is_whole, source, targets, world)
            if problem is not None:
                raise problem
            file.flush()
            os.fsync(file.fileno())
        if is_whole:
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _pass_on(tensor: Tensor, source: int, targets: list[int], world: World) -> None:
    dist.recv(tensor, source, group=world.control)
    for target in targets:
        dist.send(tensor, target, group=world.control)
