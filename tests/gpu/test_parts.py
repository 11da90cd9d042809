"""All parts of `make gpu`, on the CPU and with tiny sizes. Takes minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_part_runs_without_a_gpu(tmp_path: Path) -> None:
    argv = [sys.executable, "benchmarks/gpu", "--device", "cpu", "--limit", "800", "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"| {part} | ok |" in page for part in ("facts", "tests", "gpt2", "resnet50", "commands")), page
