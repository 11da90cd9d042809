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
        self._problem: Exception | None = None

    def save(self, state: dict[str, Any], announcement: str | None = None) -> None:
        """Return when the tensors in `state` may change again."""
        self.close()
        tensors = {name: state[name] for name in TENSORS if name in state}
        info = {name: value for name, value in state.items() if name not in TENSORS}
        aside = self._folder / f".step-{info['step']:09d}-sharded.tmp"
        aside.mkdir(exist_ok=True)
        if self._world.device.type == "cpu":
            tensors = on_host(tensors)  # on a GPU, async_save makes this copy
        future: Any = async_save(tensors, storage_writer=FileSystemWriter(aside), process_group=self._group)
        self._thread = threading.Thread(target=self._finish, args=(future, aside, info, announcement), daemon=True)
        self._thread.start()

    def close(self) -> Exception | None:
        """Return when the snapshot is on disk; what went wrong if it is not."""
        if self._thread:
            self._thread.join()
            self._thread = None
        return self._problem

    def _finish(self, future: Future[Any], aside: Path, info: dict[str, Any], announcement: str | None) -> None:
        try:
            future.result()  # on any rank, only after all ranks have written
            if self._world.local_rank == 0:
                publish(aside, info, self._keep)
            self._problem = None
        except Exception as error:  # noqa: BLE001  a full disk or memory may have room for the next snapshot
            self._problem = error
            print_line(f"FAILED snapshot on {socket.gethostname()} step:{info['step']} error:{one_line(error)}")
        else:
            if announcement and self._world.rank == 0:
                print_line(announcement)


def publish(aside: Path, info: dict[str, Any], keep: int) -> None:
    """Give a complete snapshot its name, and delete old ones. On a shared disk, another node may be faster."""
    folder = aside.parent
    final = folder / aside.name.removeprefix(".").removesuffix(".tmp")
    try:
        (aside / INFO).write_text(json.dumps(info))
        sync_folder(aside)
        aside.rename(final)
    except FileNotFoundError:
        if not final.exists():
            raise
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


def restore(
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    ema: EMA | None,
) -> None:
    """Load the parts of this rank."""
    tensors = tensors_of(model, optimizer, ema if state["config"].get("ema") else None)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    load(tensors, storage_reader=FileSystemReader(state["path"]))
    set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)  # the flags of this run count
    if ema and "ema" in tensors:
        ema.load_state_dict(tensors["ema"])


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
    return None


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
