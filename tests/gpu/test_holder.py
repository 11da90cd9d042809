"""A process of a dead run that holds memory of a GPU is found and killed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("fabric", reason="fabric is not installed: pip install ddp-orch")
sys.path.insert(0, str(Path(__file__).parents[1] / "node"))

from lab.waiting import wait_until
from local_runs import Run, local_runs

from orchestrator.node.host import nvml, processes

pytestmark = pytest.mark.gpu

# In a session of its own, as workers of a data loader may be: it outlives the rank that started it.
HOLD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
time.sleep(300)
"""
HOLDER = """
import time, torch
held = torch.ones(1 << 28, device=%r)  # 1 GiB
print("holds", flush=True)
time.sleep(300)
"""


def used() -> int:
    return sum(gpu["used"] or 0 for gpu in nvml.usage())


def kill_guard_and_recorder(run: Run) -> None:
    recorder, guard = run.recorder(), run.guard()
    assert recorder is not None
    processes.send(guard, signal.SIGSTOP)
    processes.send_all([recorder, guard], signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")


@pytest.mark.skipif(sys.platform != "linux", reason="hosts run Linux")
def test_a_stale_holder_of_a_gpu_is_killed_and_its_memory_is_free(tmp_path: Path, device: str) -> None:
    before = used()
    with local_runs(tmp_path) as runs:
        run = runs.start(HOLD, HOLDER % device)
        run.wait_for("holds", "1.0.out", timeout=50.0)
        assert device == "cpu" or used() - before >= 1 << 30
        kill_guard_and_recorder(run)
        answer = run.hosts[0].session.request("stale", {"ports": []})
        assert answer["killed"] and answer["remaining"] == [] and not run.members()
        wait_until(lambda: used() <= before + (64 << 20), 20.0, "the memory of the GPU is free")
