"""The device of these tests, and this machine's GPUs. GPU_TESTS_DEVICE=cpu tests the tests, with a fake driver."""

from __future__ import annotations

import os

import fake_nvml
import pytest
from e2e import nvidia

DEVICE = os.environ.get("GPU_TESTS_DEVICE", "cuda")


def pytest_configure(config: pytest.Config) -> None:
    """Known here too: `make gpu` runs without tests/conftest.py, which needs more packages."""
    for marker in ("gpu: needs an NVIDIA GPU", "full: part of `make chaos` alone"):
        config.addinivalue_line("markers", marker)


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which a program finds nvidia-smi and NVML: the real ones, or fakes with one healthy GPU."""
    if DEVICE == "cuda":
        return dict(os.environ)
    folder = tmp_path_factory.mktemp("driver")
    fake_nvml.build(folder)
    (folder / "gpus").write_text(f"{FAKE_UUID} 0 fine\n")
    (folder / "answer.xml").write_text(nvidia.answer({}))
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -q ] && cat {folder}/answer.xml\n')
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML": str(folder / "gpus"),
    }


FAKE_UUID = "GPU-00000000-0000-0000-0000-000000000001"  # of the first GPU of e2e.nvidia
