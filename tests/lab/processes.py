"""Read a process table. Signals nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "DDP_ORCH_RUN_ID"  # in the environment of every process of a run


@dataclass(frozen=True)
class Process:
    """A process as it is seen inside its host."""

    pid: int
    uid: int
    state: str  # one letter, as in ps; Z is a zombie
    argv: tuple[str, ...]
    environ: Mapping[str, str]


def read_processes(proc: Path) -> list[Process]:
    """All processes of a mounted /proc, by pid. One that ends while we look is left out."""
    found = []
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            argv = (folder / "cmdline").read_text(errors="surrogateescape").rstrip("\0").split("\0")
            variables = (folder / "environ").read_text(errors="surrogateescape").split("\0")
            found.append(
                Process(
                    pid=int(folder.name),
                    uid=folder.stat().st_uid,
                    state=(folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0],
                    argv=tuple(argv) if argv != [""] else (),
                    environ=dict(v.split("=", 1) for v in variables if "=" in v),
                )
            )
    return sorted(found, key=lambda p: p.pid)


def of_run(processes: list[Process], run_id: str | None) -> list[Process]:
    """Those of run `run_id`, or of any run."""
    return [p for p in processes if MARK in p.environ and run_id in (None, p.environ[MARK])]
