"""Where downloaded files go that a run has written beside its code: never over those of another run.

Each run has a copy of the code of its own, so two runs of one name may have different files with the same path. The
first run gets `DIR/HOST/code`, any other one `DIR/HOST/code-RUN_ID`. A note in DIR says whose `code` is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from .receiving import RemoteFile, is_here

NOTE = ".ddp-orch-code.json"  # {host: run id}; no host can write it, because its files go to DIR/HOST


def place(folder: Path, host: str, run_id: str, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """These files of a host, each with its path below `folder/host`."""
    if not files:
        return []
    top = files[0].path.partition("/")[0]  # `code`, or `code_` if the output folder has a `code`
    if not _is_of_other_run(folder, host, top, run_id, files):
        return list(files)
    return [replace(remote, target=f"{top}-{run_id}/{remote.path.partition('/')[2]}") for remote in files]


def _is_of_other_run(folder: Path, host: str, top: str, run_id: str, files: Iterable[RemoteFile]) -> bool:
    here = folder / host
    if not os.path.lexists(here / top):
        return False
    if os.path.lexists(here / f"{top}-{run_id}"):
        return True
    noted = _read(folder).get(host)
    if noted is not None:
        return noted != run_id
    # downloaded by an older version, or put here by the user
    present = [remote for remote in files if os.path.lexists(here / remote.path)]
    return not present or not all(is_here(here, remote) for remote in present)


def owner(folder: Path, host: str) -> str | None:
    """The run whose files `folder/host/code` has, if that is known."""
    return _read(folder).get(host)


def remember(folder: Path, hosts: Iterable[str], run_id: str) -> None:
    """Note that `code` of these hosts has the files of this run. Raises OSError."""
    noted = _read(folder)
    if new := {host: run_id for host in hosts if noted.get(host) != run_id}:
        temporary = folder / f"{NOTE}-{os.getpid()}"
        temporary.write_text(json.dumps({**noted, **new}), encoding="utf-8")
        temporary.replace(folder / NOTE)


def _read(folder: Path) -> dict[str, str]:
    try:
        noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(noted, dict):
        return {}
    return {host: run_id for host, run_id in noted.items() if isinstance(run_id, str)}
