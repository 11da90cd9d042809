"""Save and load snapshots of a sharded model with torch.distributed.checkpoint: every rank writes its part.

A snapshot is a folder `step-STEP-sharded`. All nodes write to a temporary folder and rename it when all ranks have
written. On a shared disk this is one folder. Without one, each node has the files of its own ranks, and at the start
the nodes copy from each other what they lack. The number of ranks may change: each rank reads the parts it needs.

Unlike checkpoint.py, torch.distributed.checkpoint unpickles what it reads. Load only snapshots of your own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from trainer.checkpoint import on_host, one_line, sync_folder
from trainer.dist import World, print_line
from trainer.extras.ema import EMA
from trainer.transfer import copy_to_all_nodes

TENSORS = ("model", "optimizer", "ema")
INFO, METADATA = "info.json", ".metadata"
TIMEOUT = timedelta(minutes=30)  # for writing one snapshot


class ShardedWriter:
    """Like FileWriter, but all ranks have one and call it together. A snapshot waits for the one before."""

    def __init__(self, folder: Path, keep: int, world: World) -> None:
        self._folder, self._keep, self._world = folder, keep, world
        # The ranks exchange messages while they write, in a thread: these must not meet those of the training.
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._thread: threading.Thread | None = None
        self._step = -1  # of the last snapshot
        self._problem: Exception | None = None
        self._lost: RuntimeError | None = None  # why a message from another rank did not come
        self._announcement: str | None = None

    def save(self, state: dict[str, Any], announcement: str | None = None) -> None:
        """Return when the tensors in `state` may change again."""
        self.close()
        tensors = {name: state[name] for name in TENSORS if name in state}
        info = {name: value for name, value in state.items() if name not in TENSORS}
        self._announcement = announcement or self._announcement
        # A snapshot on request may follow that of --save-every at the same step.
        if info["step"] == self._step and not any(self._world.gather(self._problem is not None)):
            self._announce()
            return
        self._step = info["step"]
        try:
            # On a GPU, async_save makes this copy.
            copied, problem = on_host(tensors) if self._world.device.type == "cpu" else tensors, None
        except Exception as error:  # noqa: BLE001  too little memory, as a rule
            copied, problem = {}, error
        # All ranks write together, or none: the others would wait for the one that cannot.
        if any(self._world.gather(problem is not None)):
            self._fail(problem or RuntimeError("another rank could not copy its part"))
            return
        aside = self._folder / f".step-{self._step:09d}-sharded.tmp"
        future: Any = async_save(copied, storage_writer=Files(aside), process_group=self._group)
        self._thread = threading.Thread(target=self._finish, args=(future, aside, info), daemon=True)
        self._thread.start()

    def close(self) -> Exception | None:
        """Return when the snapshot is on disk; what went wrong if it is not. Raises RuntimeError if a rank is lost."""
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._lost:  # a rank that still waits for that message learns of it when this one ends
            raise RuntimeError("another rank was lost while a snapshot was written") from self._lost
        return self._problem

    def close_alone(self) -> None:
        """Write nothing more: a snapshot needs all ranks."""

    def _finish(self, future: Future[Any], aside: Path, info: dict[str, Any]) -> None:
        try:
            future.result()  # on any rank, only after all ranks have written
            if self._world.local_rank == 0:
                publish(aside, info, self._keep)
        except (Exception, CheckpointException) as error:  # noqa: BLE001  a full disk may have room for the next one
            shutil.rmtree(aside, ignore_errors=True)  # if it stays, so does the full disk
            self._lost = error if isinstance(error, RuntimeError) else None
            self._fail(first_of(error))
        else:
            self._problem = None
            self._announce()

    def _fail(self, problem: Exception) -> None:
        self._problem = problem
        print_line(f"FAILED snapshot on {socket.gethostname()} step:{self._step} error:{one_line(problem)}")

    def _announce(self) -> None:
        if self._announcement and self._world.rank == 0:
            print_line(self._announcement)
        self._announcement = None


class Files(FileSystemWriter):
    """Fails with the error of the system, such as that of a full disk, behind which torch.save puts one of its own."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None


def first_of(error: Exception | CheckpointException) -> Exception:
    """What went wrong on the first rank that failed, without the tracebacks of all ranks."""
    if not isinstance(error, CheckpointException):
        return error
    rank = min(error.failures)
    return RuntimeError(f"rank {rank}: {one_line(error.failures[rank][0])}")


def publish(aside: Path, info: dict[str, Any], keep: int) -> None:
    """Give a complete snapshot its name, and delete old ones. On a shared disk, another node may be faster."""
    folder = aside.parent
    final = folder / aside.name.removeprefix(".").removesuffix(".tmp")
    try:
        (aside / INFO).write_text(json.dumps(info))
        sync_folder(aside)
        aside.rename(final)
    except OSError:
        if not (final / INFO).exists():
            raise
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(folder)
    for old in sorted(snapshots(folder))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def snapshots(folder: Path) -> list[Path]:
    return list(folder.glob("step-*-sharded"))


def make_writer(folder: Path, keep: int, world: World) -> ShardedWriter:
    return ShardedWriter(folder, keep, world)


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer, ema: EMA | None) -> dict[str, Any]:
    """By the names of the parameters, so that another number of ranks finds its parts."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, **({"ema": ema.state_dict()} if ema else {})}


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, ema: EMA | None) -> None:
    """Load the parts of this rank."""
    tensors = tensors_of(model, optimizer, ema if state["config"].get("ema") else None)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    load(tensors, storage_reader=FileSystemReader(state["path"]))
    set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)  # the flags of this run count
    if ema:
        ema.load_state_dict(tensors["ema"] if "ema" in tensors else ema.state_of(model))


def load_newest(folder: Path, world: World, memory: Path | None = None) -> dict[str, Any] | None:
    """Find the newest snapshot that the nodes have together, and copy to each node what it lacks.

    `memory`: a second folder with snapshots. Returns the plain values of the snapshot, its folder as `path`, and the
    folder that this is in as `folder`.
    """
    folders = [folder] if memory is None else [folder, memory]
    if world.local_rank == 0:
        for leftover in (path for each in folders for path in each.glob(".step-*-sharded.tmp")):
            shutil.rmtree(leftover, ignore_errors=True)
    leaders = [rank for rank, local_rank in enumerate(world.gather(world.local_rank)) if local_rank == 0]
    found = [(path.name, number, sizes_of(path)) for number, each in enumerate(folders) for path in snapshots(each)]
    listings = [json.loads(bytes(world.broadcast(json.dumps(found).encode(), leader))) for leader in leaders]
    # by name and number of the folder: the sizes of the files on each node
    tables = [{(name, number): sizes for name, number, sizes in listing} for listing in listings]
    candidates = sorted({candidate for table in tables for candidate in table}, reverse=True)
    for name, number in candidates:
        path = folders[number] / name
        files = [table.get((name, number), {}) for table in tables]
        missing = None
        with_metadata = [rank for rank, each in zip(leaders, files, strict=True) if METADATA in each]
        if with_metadata:
            needed = world.broadcast(json.dumps(files_of(path)).encode(), with_metadata[0])
            sizes: dict[str, int] = json.loads(bytes(needed))
            missing = [file for file, size in sizes.items() if not any(each.get(file, -1) >= size for each in files)]
        if missing == []:
            newer = [folders[other] / each for each, other in candidates[: candidates.index((name, number))]]
            return take(path, [*sizes, METADATA, INFO], newer, world)
        lacks = ",".join(missing or [METADATA])
        world.print(f"DAMAGED snapshot {path}, not used: no node has {lacks}")
    if world.local_rank == 0:  # this run starts from scratch, and will save the same steps
        for name, number in candidates:
            put_aside(folders[number] / name)
    return None


def put_aside(path: Path) -> None:
    """Rename a damaged snapshot. On a shared disk, another node may be faster, so each has a name of its own."""
    aside = path.with_name(f"{path.name}.{socket.gethostname()}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)


def take(path: Path, files: list[str], newer: list[Path], world: World) -> dict[str, Any]:
    for file in files:
        copy_to_all_nodes(path / file, world)
    info: dict[str, Any] = json.loads((path / INFO).read_text())
    world.gather(0)
    if world.local_rank == 0:
        for each in newer:  # of no use, and in the way of the steps to come
            shutil.rmtree(each, ignore_errors=True)
    return {**info, "path": path, "folder": path.parent}


def sizes_of(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in path.iterdir()}


def files_of(path: Path) -> dict[str, int]:
    """The files that the snapshot's metadata names, and how long each must be; {} where there is no metadata."""
    with contextlib.suppress(FileNotFoundError):
        sizes: dict[str, int] = {}
        for part in FileSystemReader(path).read_metadata().storage_data.values():
            sizes[part.relative_path] = max(sizes.get(part.relative_path, 0), part.offset + part.length)
        return sizes
    return {}
