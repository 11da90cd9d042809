"""Explain a missing file of a run if it exists on this machine: why it was not sent. Changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..diagnosis.engine import Diagnosis
from ..output.finding import Finding
from ..plan import snapshot
from . import recent

CODES = ("dataset-missing", "file-missing-on-host")
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_IN_CODE = re.compile(r"/.*/runs/[^/]+/code/(.+)")  # a path on a host, in the run's copy of the code


def explain(diagnosis: Diagnosis, run_id: str) -> Diagnosis:
    """The diagnosis of a run, with the reason if a missing file is in the code's folder on this machine."""
    started = recent.started(run_id)
    if started is None or not started.code:
        return diagnosis
    folder, sync_base = Path(started.code), Path(started.folder or Path(started.inventory).parent)

    def explain_finding(finding: Finding) -> Finding:
        if finding.code in CODES:
            for path in _paths(finding, folder):
                if why := snapshot.why_not_sent(folder, path, sync_base):
                    return replace(finding, code="dataset-missing", confidence="high", fix=why)
        return finding

    return replace(diagnosis, findings=tuple(map(explain_finding, diagnosis.findings)))


def _paths(finding: Finding, folder: Path) -> Iterator[str]:
    """The quoted paths of a finding, relative to the folder in which the run starts, but for those of its frames."""
    for line in (*finding.evidence, finding.message):
        if line.startswith('File "'):
            continue
        for match in _QUOTED.finditer(line):
            path = match[1] or match[2]
            inner = _IN_CODE.fullmatch(path)
            if inner is None:
                yield path
                continue
            for root in (folder, *folder.parents):  # the root of the code is this folder or one above it
                yield os.path.relpath(root / inner[1], folder)
