"""Save and load snapshots: a file is complete or does not exist. Unpickles only tensors and plain values.

A file is named `step-STEP-DIGEST.pt`, where DIGEST is the start of the SHA-256 of its content. So one rename publishes
both, and a name tells whether its file was cut short or changed. `torch.load(file, weights_only=True)` reads it.

Hosts need no shared disk. One process per node writes, and at the start the newest snapshot of any node is sent to all,
so that a new host needs no file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from torch import Tensor, nn

from trainer.config import Config, ConfigError, spelled
from trainer.dist import World, print_line
from trainer.extras.ema import EMA
from trainer.optim import is_fused
from trainer.transfer import CHUNK, copy_to_all_nodes

# flags that give the steps of a run their meaning
SAME = (
    "parallel", "model", "data", "image_size", "samples", "classes", "context", "batch_size", "seed", "optimizer",
)  # fmt: skip
KEEP_IN_MEMORY = 2  # snapshots


class Writer(Protocol):
    """Writes snapshots while training continues."""

    def save(self, state: dict[str, Any], announcement: str | None = None) -> None:
        """Return when `state`, whose "step" orders it, may change again.

        `announcement`: a line to print once this snapshot, or a newer one in its place, is on disk.
        """

    def close(self) -> Exception | None:
        """Return when all is on disk; what went wrong if the newest snapshot is not."""

    def close_alone(self) -> None:
        """Return when all is on disk that needs no other rank: they may be waiting for this one to end."""


class FileWriter:
    """Copies a state to host memory while training waits; a thread writes the copy while training continues.

    If the disk is too slow, the newest snapshot waits, and those before it are skipped.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._changed = threading.Condition()
        self._waiting: dict[str, Any] | None = None
        self._spare: list[dict[str, Any]] = []  # copies whose memory is used again
        self._closing = False
        self._problem: Exception | None = None
        self._announcement: str | None = None
        self._thread = threading.Thread(target=self._work, name="snapshots", daemon=True)
        self._thread.start()

    def save(self, state: dict[str, Any], announcement: str | None = None) -> None:
        with self._changed:
            spare = self._spare.pop() if self._spare else None
        copy = on_host(state, spare)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        with self._changed:
            if self._waiting is not None:
                self._spare.append(self._waiting)
            self._waiting = copy
            self._announcement = announcement or self._announcement
            self._changed.notify()

    def close(self) -> Exception | None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        return self._problem

    def close_alone(self) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closing)
                if self._waiting is None:
                    return
                state, self._waiting = self._waiting, None
                announcement, self._announcement = self._announcement, None
            try:
                write(self._folder, state, self._keep)
                self._problem = None
            except Exception as error:  # noqa: BLE001  a full disk or memory may have room for the next snapshot
                self._problem = error
                print_line(f"FAILED snapshot on {socket.gethostname()} step:{state['step']} error:{one_line(error)}")
                with self._changed:
                    self._announcement = self._announcement or announcement
            else:
                if announcement is not None:
                    print_line(announcement)
            with self._changed:
                self._spare.append(state)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def on_host(tree: Any, spare: Any = None) -> Any:
    """A copy of `tree` with its tensors in host memory; in that of `spare`, a copy made before, where it fits."""
    if isinstance(tree, Tensor):
        if not isinstance(spare, Tensor) or spare.shape != tree.shape or spare.dtype != tree.dtype:
            spare = torch.empty_like(tree, device="cpu", pin_memory=tree.is_cuda)
        return spare.copy_(tree, non_blocking=True)
    if isinstance(tree, dict):
        spares = spare if isinstance(spare, dict) else {}
        return {key: on_host(value, spares.get(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        befores = spare if isinstance(spare, list) and len(spare) == len(tree) else [None] * len(tree)
        return [on_host(value, before) for value, before in zip(tree, befores, strict=True)]
    return tree


def write(folder: Path, state: dict[str, Any], keep: int) -> None:
    """Raises what went wrong, OSError as a rule; then nothing of it is left."""
    # The name is this process's own: on a shared disk, those of the other nodes write here too.
    aside = folder / f".{socket.gethostname()}-{os.getpid()}.tmp"
    try:
        with aside.open("wb") as file:
            digesting = Digesting(file)
            try:
                torch.save(state, digesting)  # type: ignore[arg-type]  # all that it needs is write and flush
            except RuntimeError as error:  # its way of saying that a write failed
                raise digesting.problem or error from None
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / f"step-{state['step']:09d}-{digesting.digest()}.pt")
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(folder)  # only with its folder does the rename reach the disk
    kept = sorted({_step(each) for each in _snapshots(folder)})[-keep:]
    for each in _snapshots(folder):
        if _step(each) not in kept:
            each.unlink(missing_ok=True)  # on a shared disk, another node may have been faster


class Digesting:
    """A file that is being written, and the digest of what was."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self.problem: OSError | None = None

    def write(self, content: bytes) -> int:
        try:
            self._hash.update(content)
            return self._file.write(content)
        except OSError as error:
            self.problem = error
            raise

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


def load_newest(folder: Path, world: World, memory: Path | None = None) -> dict[str, Any] | None:
    """The newest undamaged snapshot of any node, the same on all ranks; None if there is none.

    `memory`: a second folder with snapshots. Tensors are mapped from the file: the ranks of a node share the memory
    that they take. `folder` of the state is where it was found, `path` is the file.
    """
    folders = [folder] if memory is None else [folder, memory]
    step, number, name = -1, 0, ""
    if world.local_rank == 0:
        for leftover in (file for each in folders for file in each.glob(".*.tmp")):
            if leftover.is_file():  # of a process killed while it wrote; at the start nobody writes
                leftover.unlink(missing_ok=True)
        step, number, name = _newest(folders)
    steps = world.gather(step)
    newest = max(steps)
    if newest < 0:
        return None
    source = steps.index(newest)
    found_in = folders[world.gather(number)[source]]
    path = found_in / bytes(world.broadcast(name.encode(), source)).decode()
    copy_to_all_nodes(path, world)
    return {**map_file(path), "path": path, "folder": found_in}


def map_file(path: Path) -> dict[str, Any]:
    """The state in a snapshot. Tensors take memory as soon as they are read, until the last of the state is deleted."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def _newest(folders: Sequence[Path]) -> tuple[int, int, str]:
    """Step, number of the folder, and name of the newest snapshot that is undamaged."""
    snapshots = [(_step(path), number, path) for number, folder in enumerate(folders) for path in _snapshots(folder)]
    for step, number, path in sorted(snapshots, reverse=True):
        try:
            with path.open("rb") as file:
                digest = digest_of(file)
        except FileNotFoundError:  # on a shared disk, another node was faster in renaming it
            continue
        if path.stem.endswith("-" + digest):
            return step, number, path.name
        # Renamed, so that it does not count as one of those to keep; not deleted, as somebody will want to know why.
        aside = path.with_name(path.name + ".damaged")
        print_line(f"DAMAGED snapshot on {socket.gethostname()}, not used, kept as {aside}")
        with contextlib.suppress(FileNotFoundError):
            path.replace(aside)
    return -1, 0, ""


def digest_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while content := file.read(CHUNK):
        digest.update(content)
    return digest.hexdigest()[:16]


def _snapshots(folder: Path) -> list[Path]:
    return list(folder.glob("step-*-*.pt"))


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(out: str) -> Path:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot create this folder: {error.strerror}") from error
    return Path(out)


def memory_folder(config: Config) -> Path | None:
    """The folder for snapshots in memory, if there shall be any. Raises ConfigError if nobody has made one."""
    if not config.save_memory_every:
        return None
    folder = os.environ.get("DDP_ORCH_MEMORY_DIR")
    if not folder:
        raise ConfigError(
            "--save-memory-every needs a folder in memory: set run.memory_limit in the inventory of ddp-orch "
            "(docs/memory.md), or DDP_ORCH_MEMORY_DIR to a folder on /dev/shm"
        )
    return Path(folder)


def exit_if_not_saved(world: World, problem: Exception | None) -> None:
    """End all ranks with an error if a node failed to write its last snapshot."""
    failed = [rank for rank, has_failed in enumerate(world.gather(problem is not None)) if has_failed]
    if failed:
        reason = f"{socket.gethostname()}: the last snapshot could not be written: {problem}"
        world.exit_together(1, reason, speaker=failed[0])


def check_same_kind(folder: Path, parallel: str) -> None:
    """Raise ConfigError if the only snapshots are those of the other --parallel: this run would start from scratch."""
    kinds = {"ddp": any(folder.glob("step-*-*.pt")), "fsdp": any(folder.glob("step-*-sharded"))}
    other = "fsdp" if parallel == "ddp" else "ddp"
    if kinds[other] and not kinds[parallel]:
        raise ConfigError(
            f"the snapshots in {folder} are from a run with --parallel {other}; "
            "continue it with that, or give another --out to start from scratch"
        )


def check_same_training(config: Config, saved: dict[str, Any]) -> None:
    """Raise ConfigError if the steps of the saved run mean something else."""
    for key in SAME:
        if key in saved and saved[key] != getattr(config, key):
            name = spelled(key)
            raise ConfigError(
                f"the snapshots in {config.out} are from a run with {name} {saved[key]}, not {getattr(config, key)}; "
                f"give {name} {saved[key]} to continue it, or another --out to start from scratch"
            )


def load_weights(path: str, model: nn.Module) -> str:
    """Load the weights of a snapshot or a state_dict. Raises ConfigError if they are of another model.

    Tensors of another shape, such as the last layer for another number of classes, stay as they are. Returns a line
    that names them.
    """
    if Path(path).is_dir():
        convert = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} weights.pt"
        raise ConfigError(f"--init-from {path} is a folder; make a file of a snapshot of --parallel fsdp: {convert}")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise ConfigError(f"--init-from {path}: {' '.join(str(error).split())}") from error
    weights = loaded.get("model", loaded)
    # DistributedDataParallel and torch.compile put these before each name
    weights = {name.removeprefix("module.").removeprefix("_orig_mod."): value for name, value in weights.items()}
    own = model.state_dict()
    differing = sorted(name for name, value in weights.items() if name in own and own[name].shape != value.shape)
    try:
        model.load_state_dict({name: own[name] if name in differing else value for name, value in weights.items()})
    except RuntimeError as error:
        raise ConfigError(f"--init-from {path}: {' '.join(str(error).split())}") from error
    return f"init from:{path} loaded:{len(weights) - len(differing)} not_loaded:{','.join(differing) or 'none'}"


def make_writer(folder: Path, keep: int, world: World) -> Writer | None:
    """One process per node writes."""
    return FileWriter(folder, keep) if world.local_rank == 0 else None


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer, ema: EMA | None) -> dict[str, Any]:
    ema_state = {"ema": ema.state_dict()} if ema else {}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **ema_state}


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, ema: EMA | None) -> None:
    """Load a snapshot, maybe from another kind of device. Raises ConfigError if it does not fit.

    Maps the file once more for each part, so that the memory with one part is free before the next is read.
    """
    device = next(model.parameters()).device
    try:
        model.load_state_dict(map_file(state["path"])["model"])
    except RuntimeError as error:
        raise does_not_fit(state, error) from error
    optimizer_state = map_file(state["path"])["optimizer"]
    if device.type == "cpu":  # else the optimizer would work in the memory that is mapped from the file
        optimizer_state = on_host(optimizer_state)
    fused = is_fused(device)
    for saved, group in zip(optimizer_state["param_groups"], optimizer.param_groups, strict=False):
        saved |= {"fused": fused, "weight_decay": group["weight_decay"]}  # the flags of this run count
        saved |= {key: group[key] for key in ("momentum", "betas") if key in group}
    try:
        optimizer.load_state_dict(optimizer_state)
    except (RuntimeError, ValueError) as error:
        raise does_not_fit(state, error) from error
    if ema:
        ema.load_state_dict(state["ema"] if "ema" in state else ema.state_of(model))


def does_not_fit(state: dict[str, Any], error: Exception) -> ConfigError:
    return ConfigError(f"the snapshot of step {state['step']} does not fit this model: {one_line(error)}")
