"""Name the line of the user's script that sets the address of rank 0, if the ranks did not meet. Reads files only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..diagnosis.engine import Diagnosis
from ..diagnosis.scene import STEPS
from ..diagnosis.transcript import LogLine
from ..output.finding import Finding
from ..output.terminal import one_line
from ..plan import python_files
from . import recent

CODES = ("worker-never-arrived", "rdzv-endpoint-not-hosted")


def explain(diagnosis: Diagnosis, run_id: str, lines: Sequence[LogLine]) -> Diagnosis:
    """The diagnosis of a run, with that line in the fix of its first cause. `lines`: of its newest attempt.

    If nothing is known, but for a user who stopped the run, the line is named if no rank has reported a step.
    """
    first, *others = diagnosis.findings or (None,)
    if first is None or first.code == "user-interrupt":
        return _explain_silence(diagnosis, run_id, lines)
    place = _find_place(run_id, first.at) if first.code in CODES else None
    if place is None:
        return diagnosis
    fix = f"Remove {place[0]}: {place[1]}, and ddp-orch sets MASTER_ADDR and MASTER_PORT."
    confidence = "medium" if first.confidence == "low" else first.confidence
    return replace(diagnosis, findings=(replace(first, fix=fix, confidence=confidence), *others))


def _explain_silence(diagnosis: Diagnosis, run_id: str, lines: Sequence[LogLine]) -> Diagnosis:
    first = diagnosis.findings[0] if diagnosis.findings else None
    hosts = {line.host for line in lines if line.rank is not None}
    if len(hosts) < 2 or any(STEPS.search(line.text) for line in lines if not line.agent):
        return diagnosis
    place = _find_place(run_id, first.at if first else None, only_local=True)
    if place is None:
        return diagnosis
    fix = f"Remove {place[0]}: ddp-orch sets MASTER_ADDR and MASTER_PORT."
    if first is not None:
        fix = f"No rank had reported a step: {place[1]}. Then the ranks wait for each other. {fix}"
        return replace(diagnosis, findings=(replace(first, fix=fix), *diagnosis.findings[1:]))
    found = Finding(
        "warning",
        "worker-never-arrived",
        (),
        f"The run is still running, and no rank has reported a step: {place[1]}. Then the ranks wait for each other.",
        fix,
        confidence="medium",
    )
    return replace(diagnosis, findings=(found,), is_running=True)


def _find_place(run_id: str, before: float | None, *, only_local: bool = False) -> tuple[str, str] | None:
    """What is to be removed, and why, in words.

    `before`: Unix time; a file that was changed later may be another one now. `only_local`: only if each host is itself
    the machine that the line names.
    """
    started, command = recent.started(run_id), recent.command_of(run_id)
    if started is None or command is None or not started.code:
        return None
    folder = Path(started.code)
    words = tuple(command.options.get("script") or ())
    starts = (python_files.file_of(words[place:], folder) for place in range(len(words)))
    script = next((file for file in starts if file is not None), None)
    if script is None:
        return None
    for found in python_files.find_own_launchers(script, folder if "-m" in words else script.parent):
        try:
            is_old = before is None or found.path.stat().st_mtime <= before
        except OSError:
            continue
        is_meant = not only_local or python_files.LOOPBACK.fullmatch(found.value)
        if found.what == "address" and is_old and is_meant:
            place = f"{os.path.relpath(found.path, folder)}:{found.line}"
            what = f"`init_method` from the call in {place}" if found.in_call else place
            return one_line(what), one_line(f"{place} names {found.value} as the address of rank 0")
    return None
