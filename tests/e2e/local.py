"""The program with a home and a state folder of a test's own, where the only host is this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def orch(folder: Path, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`env`: more variables."""
    return subprocess.run(
        command(*argv),
        cwd=folder,
        env={**environment(folder), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator.cli", *argv]


def environment(folder: Path) -> dict[str, str]:
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DDP_ORCH_STATE_DIR": str(folder / "state"),
        "HOME": str(home),
        "XDG_STATE_HOME": str(folder),
    }
