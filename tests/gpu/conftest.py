"""The device of these tests, and this machine's GPUs. GPU_TESTS_DEVICE=cpu tests the tests, with a fake driver."""

from __future__ import annotations

import os

import fake_driver
import pytest

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
    return {**os.environ, **fake_driver.make(tmp_path_factory.mktemp("driver"))}
