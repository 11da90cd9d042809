"""The tests marked gpu. With BENCHMARK_DEVICE=cpu, they use the CPU and a fake NVML."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from figures import DEVICE, ROOT, Figures, skip

LIMIT = 110  # s for each test


def main() -> int:
    missing = [name for name in ("pytest", "pytest_timeout") if not importlib.util.find_spec(name)]
    if missing:
        skip(f"{sys.executable} lacks {', '.join(missing)}")
    figures = Figures(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        argv = ["-m", "pytest", "-m", "gpu", "tests/gpu", f"--timeout={LIMIT}", "-q", "-p", "no:cacheprovider"]
        argv += ["--confcutdir=tests/gpu"]  # tests/conftest.py needs the packages of the lab
        path = os.pathsep.join([str(ROOT / "tests"), os.environ["PYTHONPATH"]])
        environment = {**os.environ, "GPU_TESTS_DEVICE": DEVICE, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, *argv, f"--junit-xml={report}", f"--basetemp={folder}/tests"],
            cwd=ROOT, env=environment, check=False,
        )  # fmt: skip
        figures.add("tests", results(report))
    return done.returncode


def results(report: Path) -> dict[str, str]:
    """By test: its seconds, or why it did not pass."""
    if not report.exists():
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = f"passed in {float(case.get('time', 0)):.1f} s"
        if problem is not None:
            outcome = f"{problem.tag}: {' '.join((problem.get('message') or '').split())[:300]}"
        found[str(case.get("name"))] = outcome
    return found


if __name__ == "__main__":
    sys.exit(main())
