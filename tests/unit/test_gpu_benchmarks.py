"""`make gpu`: parts run once, within their time, and what was measured is kept. The parts here are small programs."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from lab.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"

RECORD = "import json, pathlib, sys; file = pathlib.Path(sys.argv[1]); figures = json.loads(file.read_text());"
COUNT = f"{RECORD} figures['runs'] = figures.get('runs', 0) + 1; file.write_text(json.dumps(figures))"
HANG = f"""
{COUNT}
import subprocess, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])
print('child', child.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("gpu_main", FOLDER / "__main__.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["gpu_main"] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def run(gpu: ModuleType, folder: Path, *codes: str, limit: float = 60, sources: str = "a", again: bool = False) -> list:
    parts = []
    for number, code in enumerate(codes):
        program = folder / f"{number}.py"
        program.write_text(code)
        parts.append(gpu.Part(str(number), limit, (str(program),)))
    return gpu.run_parts(parts, folder, "cpu", sources, time.monotonic() + 60, again)


def figures(folder: Path, number: int = 0) -> dict[str, object]:
    return dict(json.loads((folder / f"gpu_{number}.json").read_text()))


def test_a_part_runs_once_for_the_same_code(gpu: ModuleType, tmp_path: Path) -> None:
    assert run(gpu, tmp_path, COUNT) == run(gpu, tmp_path, COUNT) == ["ok"]
    assert figures(tmp_path)["runs"] == 1
    for options in ({"sources": "b"}, {"sources": "b", "again": True}):
        assert run(gpu, tmp_path, COUNT, **options) == ["ok"]
        assert figures(tmp_path)["runs"] == 1, "it starts without the figures of before"


def test_a_part_that_failed_runs_again_and_keeps_its_figures(gpu: ModuleType, tmp_path: Path) -> None:
    failing = f"{COUNT}\nsys.exit('no such GPU')"
    assert run(gpu, tmp_path, failing, "raise SystemExit(5)") == ["failed", "skipped"]
    assert "no such GPU" in str(figures(tmp_path)["output"])
    assert run(gpu, tmp_path, COUNT, "raise SystemExit(5)") == ["ok", "skipped"]
    assert figures(tmp_path)["runs"] == 2 and figures(tmp_path)["output"] == ""


def test_a_part_that_takes_too_long_is_killed_with_its_children(gpu: ModuleType, tmp_path: Path) -> None:
    gpu.LEAST, before = 0, gpu.LEAST
    try:
        assert run(gpu, tmp_path, HANG, limit=3) == ["timed out"]
    finally:
        gpu.LEAST = before
    assert figures(tmp_path)["runs"] == 1
    child = Path("/proc") / str(figures(tmp_path)["output"]).split()[-1] / "stat"
    wait_until(lambda: not child.exists() or child.read_text().split()[2] == "Z", 10, "the child is gone")


def test_without_time_a_part_is_not_started(gpu: ModuleType, tmp_path: Path) -> None:
    part = gpu.Part("0", 60, ("none.py",))
    assert gpu.run_parts([part], tmp_path, "cpu", "a", time.monotonic() + 1) == ["not started"]
    assert not (tmp_path / "gpu_0.json").exists()


def test_the_page_says_which_targets_are_reached(gpu: ModuleType) -> None:
    contestant = {"samples_per_second": 8.0, "tokens_per_second": 8192.0, "mfu": 0.43, "peak_gib": 30.0}
    variant = {
        "config": {"model": "gpt2"},
        "contestants": {"trainer": contestant, "bare loop": {**contestant, "mfu": None}},
        "speed_of_trainer_to": {"bare loop": 0.99},
    }
    parts = {"gpt2": {"status": "ok", "device": "cuda", "compiled": variant}, "tests": {"status": "timed out"}}
    page = gpu.summary.page(parts)
    assert "| gpt2 | ok |" in page and "| tests | timed out" in page
    assert "0.990, NOT reached" in page and "43.0 %, reached" in page and page.count("not measured") == 2
    parts["gpt2"]["device"] = "cpu"
    assert "reached" not in gpu.summary.page(parts)
