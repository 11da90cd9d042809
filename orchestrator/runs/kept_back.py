"""Tell of a file that a run missed if it is on this machine, and why it was not sent. Changes nothing."""

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
    """The diagnosis of a run that was started here, knowing what the code's folder has."""
    started = recent.started(run_id)
    if started is None or not started.code:
        return diagnosis
    folder, sync_base = Path(started.code), Path(started.inventory).parent

    def explain_finding(finding: Finding) -> Finding:
        if finding.code in CODES:
            for path in _paths(finding, folder):
                if why := snapshot.why_not_sent(folder, path, sync_base):
                    return replace(finding, code="dataset-missing", confidence="high", fix=why)
        return finding

    return replace(diagnosis, findings=tuple(map(explain_finding, diagnosis.findings)))


def _paths(finding: Finding, folder: Path) -> Iterator[str]:
    """Those in quotes, relative to where the run starts."""
    for line in (*finding.evidence, finding.message):
        for match in _QUOTED.finditer(line):
            path = match[1] or match[2]
            inner = _IN_CODE.fullmatch(path)
            if inner is None:
                yield path
                continue
            for root in (folder, *folder.parents):  # the code's root is the folder of the start, or one above
                yield os.path.relpath(root / inner[1], folder)
