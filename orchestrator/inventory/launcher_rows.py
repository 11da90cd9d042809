"""The names of launchers, the user's own, and their placeholders. plan/launchers.py has what they start. No IO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .hostnames import nearest
from .values import Kind, Reading, choice, env, items, like, maybe, text
from .yaml_source import Node

COMMAND = "{command}"
NAMES = (
    "torchrun",
    "direct",
    "node",
    "accelerate",
    "deepspeed",
    "torch.distributed.launch",
    "mpi",
    "mpirun",
    "srun",
    "jax",
    "tensorflow",
    "ray",
    "vllm",
    "sglang",
    "skypilot",
    "dstack",
)
OF_HOST = (
    "node_rank",
    "nnodes",
    "nproc_per_node",
    "world_size",
    "master_addr",
    "master_port",
    "rdzv_endpoint",
    "local_addr",
    "host",
    "hosts",
    "addresses",
    "address_lines",
    "tf_config",
    "run",
    "job_id",
    "threads",
    "output",
    "output_dir",
    "python",
)
OF_RANK = ("rank", "local_rank")  # with scope rank only
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class LauncherRow:
    """A launcher of the user, as in `launchers` of an inventory."""

    scope: Literal["rank", "host"]
    argv: tuple[str, ...]
    worker: tuple[str, ...]
    env: Mapping[str, str]
    ready: str | None


def check_name(name: str) -> str:
    """The name itself. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected {', '.join(NAMES)}, or a name of `launchers`")
    return name


_WORDS = items("a list of words", text('a string ("" for an empty one)'))
_KEYS: dict[str, tuple[Kind, Any]] = {
    "scope": (choice("host", "rank"), "host"),
    "argv": (_WORDS, ()),
    "worker": (_WORDS, ()),
    "env": (env, {}),
    "ready": (maybe(like("an http URL with a port", r"http://[^\s/]+:[0-9]{1,5}(/\S*)?")), None),
}


def _read(node: Node, key: str, reading: Reading) -> dict[str, LauncherRow]:
    rows = {}
    for name, inner, mark, value in reading.entries(node, key):
        if name in NAMES or not _NAME.fullmatch(name):
            reading.wrong(mark, inner, "choose a name of letters and digits that no launcher of ddp-orch has")
        values = {part: default for part, (_, default) in _KEYS.items()}
        for part, place, part_mark, part_value in reading.entries(value, inner):
            if part in _KEYS:
                values[part] = reading.read(_KEYS[part][0], part_value, place, values[part])
            else:
                reading.wrong(part_mark, place, f"unknown key; {nearest(part, list(_KEYS))}")
        rows[name] = LauncherRow(**values)
    return rows


def _write(rows: Mapping[str, LauncherRow]) -> dict[str, Any]:
    return {
        name: {part: kind.write(getattr(row, part)) for part, (kind, _) in _KEYS.items()} for name, row in rows.items()
    }


KIND = Kind("a mapping of names to launchers", _read, _write, single=False)


def check(rows: Mapping[str, LauncherRow], chosen: str, reading: Reading) -> None:
    """Check what involves several keys: `run.launcher`, and the parts of each launcher."""
    for name, row in rows.items():
        for part, message in _problems(row):
            key = f"launchers.{name}.{part}"
            reading.wrong(reading.marks[key], key, message)
    if chosen not in (*NAMES, *rows):
        message = f"{chosen} is unknown; {nearest(chosen, (*NAMES, *rows))}"
        reading.wrong(reading.marks["run.launcher"], "run.launcher", message)


def _problems(row: LauncherRow) -> Iterator[tuple[str, str]]:
    """(key, what is wrong)."""
    if row.scope == "rank" and row.worker:
        yield "worker", "only with `scope: host`"
    if row.scope == "rank" and row.ready:
        yield "ready", "only with `scope: host`"
    if row.argv and row.argv.count(COMMAND) != 1:
        yield "argv", f'expected "{COMMAND}" once, as a word of its own: the words after -- take its place'
    known = (*OF_HOST, *(OF_RANK if row.scope == "rank" else ()))
    words = [("argv", word) for word in row.argv if word != COMMAND] + [("worker", word) for word in row.worker]
    words += [("ready", row.ready or "")]
    for key, value in (*words, *(("env", value) for value in row.env.values())):
        for place in re.findall(r"(?<![${])\{([a-z_]+)\}(?!\})", value):
            if place not in known:
                yield key, f"{{{place}}} is unknown; {nearest(place, known)}"
