"""`sample`: what this host and a run on it are doing at the moment, for `top`. Reads files and NVML."""

import os
import re
import time
from typing import Any, Dict, List, Tuple

from ..host import machine, state
from ..recorder import journal
from . import runs
from .figures import figures

TAIL = 4096  # bytes of a rank's output that are looked at for its last line and its figures
LINE_MOST = 200  # characters of a last line


def sample(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id. See machine.usage for the units."""
    folder = state.run_folder(arguments["run_id"])
    run = runs.describe(arguments["run_id"], folder)
    ranks = _ranks(os.path.join(folder, "log"), run["attempt"]) if run else []
    return dict(machine.usage(), clock=time.time(), run=run, ranks=ranks)


def _ranks(log: str, attempt: int) -> List[Dict[str, Any]]:
    ranks: Dict[int, Dict[str, Any]] = {}
    for stream, parts in sorted(journal.segments(log).items()):
        if stream.attempt != attempt or not stream.source.isdigit():
            continue
        rank = ranks.setdefault(int(stream.source), {"rank": int(stream.source), "last": "", "at": 0.0, "figures": {}})
        lines, at = _last_lines(parts[-1])
        if lines and at >= rank["at"]:
            rank.update(last=lines[-1][:LINE_MOST], at=at)
        for line in reversed(lines):
            if "step" in rank["figures"] and "loss" in rank["figures"]:
                break
            for name, value in figures(line).items():
                rank["figures"].setdefault(name, value)
    return [ranks[rank] for rank in sorted(ranks)]


def _last_lines(segment: journal.Segment) -> Tuple[List[str], float]:
    try:
        with open(segment.path + ".seg", "rb") as file:
            written = os.fstat(file.fileno())
            data = os.pread(file.fileno(), TAIL, max(0, written.st_size - TAIL))
    except OSError:
        return [], 0.0
    if written.st_size > TAIL:
        data = data[data.find(b"\n") + 1 :]
    lines = [line.strip() for line in re.split("[\r\n]", data.decode("utf-8", "backslashreplace"))]
    return [line for line in lines if line], written.st_mtime
