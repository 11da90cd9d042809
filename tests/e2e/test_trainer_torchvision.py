"""A model of the real torchvision; left out where none can be imported beside this torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.torchvision
def test_resnet18_trains_on_synthetic_images_and_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported beside torch {torch.__version__}: {error}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer"]
    flags = [
        "--model=resnet18",
        "--data=synthetic",
        "--image-size=32",
        "--samples=32",
        "--classes=10",
        "--batch-size=8",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DDP_ORCH_OUTPUT_DIR": str(tmp_path)}
    for epochs, start in (("1", "epoch:1 step:1 "), ("2", "epoch:2 step:5 ")):
        done = subprocess.run(
            [*command, *flags, "--epochs", epochs, "--log-every=1"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert next(line for line in lines if " loss:" in line).startswith(start)
        assert lines[-1].startswith(f"done epoch:{epochs} step:{4 * int(epochs)} ")
