"""nvidia-smi and NVML of one healthy GPU, for machines without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import fake_nvml
from e2e import nvidia

UUID = "GPU-00000000-0000-0000-0000-000000000001"  # of the first GPU of e2e.nvidia


def make(folder: Path) -> dict[str, str]:
    """The variables with which a program finds both. Needs gcc."""
    fake_nvml.build(folder)
    (folder / "gpus").write_text(f"{UUID} 0 fine\n")
    (folder / "answer.xml").write_text(nvidia.answer({}))
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -q ] && cat {folder}/answer.xml\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "LD_LIBRARY_PATH": str(folder)}
