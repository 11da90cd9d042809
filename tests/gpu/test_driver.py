"""What ddp-orch asks the driver of a real GPU: both ways of asking agree, and a healthy GPU has no problem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def answer(driver: dict[str, str], code: str, text: str = "") -> Any:
    """What `code` prints as JSON, in the node program's modules."""
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, env={**driver, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOOK = "import json; from orchestrator.node.serve import gpus; print(json.dumps(gpus.look()))"
NVML = "import json; from orchestrator.node.host import nvml; print(json.dumps([nvml.gpus(), nvml.usage()]))"


def test_nvidia_smi_and_nvml_agree_on_the_gpus(driver: dict[str, str]) -> None:
    look = answer(driver, LOOK)
    health, usage = answer(driver, NVML)
    assert look["error"] is None and look["driver"] and look["cuda"]
    assert [gpu["uuid"] for gpu in look["gpus"]] == [uuid for uuid, *_ in health]
    assert len(usage) == len(health) >= 1
    for gpu, (_, lost, uncorrected, repair), used in zip(look["gpus"], health, usage, strict=True):
        assert gpu["name"] and gpu["bus"] and gpu["memory_mib"] > 1000
        assert not gpu["lost"] and not lost and gpu["repair"] is None and repair is None
        assert uncorrected == gpu["uncorrected_ecc"] or None in (uncorrected, gpu["uncorrected_ecc"])
        assert used["total"] >> 20 == pytest.approx(gpu["memory_mib"], rel=0.02)
        assert 0 <= used["used"] <= used["total"] and 0 < used["watts"] < 2000 and 0 < used["celsius"] < 110


def test_a_healthy_gpu_has_no_problem(driver: dict[str, str]) -> None:
    request = {"gpu_ids": [0], "disks": {}, "interfaces": []}
    code = (
        "import json, sys; from orchestrator.node.host import health; request = json.load(sys.stdin)\n"
        "before, now = health.measure(request), health.measure(request)\n"
        "print(json.dumps([now, health.problems(request, before, now)]))"
    )
    now, problems = answer(driver, code, json.dumps(request))
    assert now["gpus"] and now["hung"] == [] and problems == []


HOLD = """
import sys, torch
held = torch.ones(1 << 28, dtype=torch.float32, device=sys.argv[1])  # 1 GiB
if sys.argv[1] == "cuda":
    torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_process_that_holds_memory_of_the_gpu_shows(driver: dict[str, str], device: str) -> None:
    before = answer(driver, NVML)[1][0]["used"]
    argv = [sys.executable, "-c", HOLD, device]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin and holder.stdout
        assert holder.stdout.readline() == "holds\n"
        during, look = answer(driver, NVML)[1][0]["used"], answer(driver, LOOK)
        holder.stdin.close()
    if device == "cuda":
        assert during - before >= 1 << 30
        holders = look["gpus"][0]["processes"]
        if holders and os.path.exists(f"/proc/{holders[0]['pid']}"):  # in some containers, the driver names no process
            assert holder.pid in [process["pid"] for process in holders]
