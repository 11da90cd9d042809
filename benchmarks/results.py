"""Where benchmark figures go: a table on stdout, and results/NAME.json with date, machine, commit and command."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write(name: str, figures: dict[str, Any]) -> None:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    record = {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M UTC}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "command": " ".join(["python", *sys.argv]),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def table(rows: dict[str, list[float]], baseline: str) -> str:
    """Seconds of each contestant, and the median of the ratios to the baseline, pair by pair."""
    lines = [f"{'':28} {'min':>7} {'median':>7} {'max':>7}   ratio to {baseline}"]
    for name, seconds in rows.items():
        ratios = [one / other if other else math.nan for one, other in zip(seconds, rows[baseline], strict=True)]
        figures = f"{min(seconds):7.2f} {median(seconds):7.2f} {max(seconds):7.2f}"
        lines.append(f"{name:28} {figures}   {median(ratios):.2f}")
    return "\n".join(lines)
