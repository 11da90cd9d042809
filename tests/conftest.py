"""What tests need of the machine: markers, what is left out where it is missing, and the fixtures of the lab."""

from __future__ import annotations

import collections
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import lab
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis
from lab.fixtures import NAMES, lab2, lab3, lab4, make_lab, shared_labs

__all__ = ["lab2", "lab3", "lab4", "make_lab", "shared_labs"]

HERE = Path(__file__).parent
IN_CI = os.environ.get("CI") == "true"
FUZZ = int(os.environ.get("DDP_ORCH_FUZZ", "0"))  # examples
MARKERS = (
    "lab: needs root, Linux namespaces and sshd (given to tests that use a lab fixture)",
    "gpu: needs an NVIDIA GPU (`make gpu`); CI may leave it out",
    "torchvision: needs a torchvision that fits the installed torch, which the small CPU build has not",
    "unpackaged: needs apptainer or enroot, which Debian 12 has no packages of; CI may leave it out",
    "slow: part of `make test-all`, and left out by `make test`",
    "short: in tests/chaos, part of its short form, which runs by default",
    "full: outside of tests/chaos, part of `make chaos` (CHAOS=full) alone",
)
# with these the suite takes twice as long, and one who has just cloned the project waits for the rest only
SLOW = (
    "chaos/",
    "e2e/test_broken_hosts.py",
    "e2e/test_check.py",
    "e2e/test_demo.py",
    "e2e/test_report_page.py",
    "e2e/test_security.py",
    "e2e/test_setup_hosts.py",
    "e2e/test_trainer",
    "e2e/test_values.py",
)

# a slow machine is no failure; CI tries the same examples every time, a developer's machine looks for new ones
hypothesis.register_profile("ddp-orch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis.register_profile("ci", hypothesis.get_profile("ddp-orch"), derandomize=True)
# `make fuzz`: many examples, and none of them twice; what takes too long is measured by the test itself
hypothesis.register_profile("fuzz", hypothesis.get_profile("ddp-orch"), max_examples=FUZZ or 1, database=None)
hypothesis.load_profile("fuzz" if FUZZ else "ci" if IN_CI else "ddp-orch")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; programs inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup. Programs inherit that, but not a handler
        signal.signal(signal.SIGHUP, lambda *_: None)
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("full") and os.environ.get("CHAOS") != "full"]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if str(item.path.relative_to(HERE)).startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if NAMES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.lab)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("lab") and (reason := no_lab()):
        pytest.skip(f"no lab on this machine: {reason}")
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("no GPU on this machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is left out has failed, for else nobody would notice."""
    report = yield
    allowed = any(item.get_closest_marker(name) for name in ("gpu", "torchvision", "unpackaged"))
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and not allowed:
        report.outcome = "failed"
        report.longrepr = f"left out, which CI=true does not allow: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = collections.Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in left_out.items():
        terminalreporter.write_line(f"left out: {count} test{'s' if count > 1 else ''}, because {reason}", yellow=True)


@functools.cache
def no_lab() -> str | None:
    return lab.missing()


@functools.cache
def has_gpu() -> bool:
    if os.environ.get("GPU_TESTS_DEVICE") == "cpu":  # to test these tests
        return True
    program = shutil.which("nvidia-smi")
    return program is not None and b"GPU" in subprocess.run([program, "-L"], capture_output=True).stdout


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
