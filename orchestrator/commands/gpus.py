"""`gpus`: list the GPUs of all hosts, how much of them is in use, and by whom."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..answers.gpus import GPUS, GpuList, GpuUser, UsedGpu
from ..hosts.fleet import combine
from ..output.console import Console, fold_messages, number_of
from ..output.mask import Mask, hide_credentials
from ..output.terminal import cut, one_line
from ..ui.text_table import print_table
from .context import load_inventory_of_run, open_fleet, stderr_console, warn_of_failures

IDLE_MIB = 1024  # of a GPU without a process; the driver itself takes some hundred MiB
MAX_COMMAND = 60  # columns
CUT_AT = 200  # characters of a command line that hosts tell
COLUMNS = ("HOST", "GPU", "NAME", "MEMORY GiB", "USE", "TEMP", "USED BY")


def gpus(inventory_path: str | None, hosts: str | None, as_json: bool) -> int:
    """Exit code 4 if a host is unreachable."""
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, None)
    machines = inventory.hosts or inventory.machines
    with open_fleet(inventory, short_timeout=True) as fleet:
        fleet.prepare(machines)
        results = fleet.each(machines, lambda _, session: session.request(GPUS, {}), "asking for its GPUs")
    mask = Mask(value for name in inventory.run.secrets if (value := os.environ.get(name)))
    answers = {host: _hide_secrets(answer, mask) for host, answer in results.done.items()}
    if as_json:
        print(json.dumps([as_dict(host, answer) for host, answer in answers.items()], indent=2))
    else:
        _print(answers, console)
    warn_of_failures(results.failed, console)
    return combine(results.failed.values(), "").exit_code if results.failed else 0


def _hide_secrets(answer: GpuList, mask: Mask) -> GpuList:
    def hide(user: GpuUser) -> GpuUser:
        command = user.command
        if len(command) >= CUT_AT:
            command = command[: mask.cut(command, len(command))]
        return replace(user, command=hide_credentials(mask.hide(command)))

    gpus = tuple(replace(gpu, users=tuple(map(hide, gpu.users))) for gpu in answer.gpus)
    return replace(answer, gpus=gpus)


def _print(answers: Mapping[str, GpuList], console: Console) -> None:
    rows = [row for host, answer in answers.items() for row in _rows(host, answer)]
    if rows:
        print_table(rows, wrapped=("USED BY",))
        sys.stdout.flush()
    without = {host: answer.problem or "no GPU" for host, answer in answers.items() if not answer.gpus}
    for line in fold_messages({host: one_line(why) for host, why in without.items()}):
        console.note(line)
    all_gpus = [gpu for answer in answers.values() for gpu in answer.gpus]
    if all_gpus:
        free = sum(map(is_free, all_gpus))
        console.note(f"{free} of {number_of(len(all_gpus), 'GPU')} free")


def _rows(host: str, answer: GpuList) -> Iterator[dict[str, str]]:
    for gpu in answer.gpus:
        known = f"{_gib(gpu.used_mib)} / {_gib(gpu.memory_mib)}" if gpu.memory_mib else "-"
        cells = (
            host,
            str(gpu.index),
            (gpu.name or "-").removeprefix("NVIDIA "),
            known,
            "-" if gpu.busy is None else f"{gpu.busy} %",
            "-" if gpu.celsius is None else f"{gpu.celsius} C",
            _used_by(gpu),
        )
        yield dict(zip(COLUMNS, cells, strict=True))


def _gib(mib: int | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}"


def _used_by(gpu: UsedGpu) -> str:
    if gpu.lost:
        return "lost: it does not answer on its bus"
    if gpu.users:
        return "; ".join(dict.fromkeys(map(_describe, gpu.users)))
    return "free" if is_free(gpu) else "processes that this host does not show"


def _describe(user: GpuUser) -> str:
    """`ann: run 20261121-212326-410f`; of another program `bob: python train.py (pid 4711, 12.0 GiB)`."""
    name = one_line(user.user or "unknown user")
    if user.run_id is not None:
        return f"{name}: run {user.run_id}"
    memory = "" if user.used_mib is None else f", {_gib(user.used_mib)} GiB"
    return f"{name}: {cut(one_line(user.command), MAX_COMMAND) or 'unknown program'} (pid {user.pid}{memory})"


def is_free(gpu: UsedGpu) -> bool:
    """Whether no process uses it. In a container, nvidia-smi may not see a process, but the memory that it uses."""
    return not gpu.lost and not gpu.users and (gpu.used_mib or 0) < IDLE_MIB


def as_dict(host: str, answer: GpuList) -> dict[str, Any]:
    listed = [
        {
            "index": gpu.index,
            "name": gpu.name,
            "memory": _bytes(gpu.memory_mib),
            "memory_used": _bytes(gpu.used_mib),
            "use": gpu.busy,
            "celsius": gpu.celsius,
            "free": is_free(gpu),
            "processes": [
                {
                    "pid": user.pid,
                    "user": user.user,
                    "memory_used": _bytes(user.used_mib),
                    "command": one_line(user.command),
                    "run_id": user.run_id,
                }
                for user in gpu.users
            ],
        }
        for gpu in answer.gpus
    ]
    return {"host": host, "driver": answer.driver, "error": answer.problem, "gpus": listed}


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib << 20
