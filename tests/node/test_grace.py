"""The real torchrun by itself gives its ranks 30 s after SIGTERM. Under ours `run.grace` counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from local_runs import Runs

# interpreters with other versions of torch, such as one before 2.13: /venv/bin/python:/other/bin/python
PYTHONS = [sys.executable, *filter(None, os.environ.get("DDP_ORCH_TEST_PYTHONS", "").split(":"))]
VERSION = "import importlib.metadata; print(importlib.metadata.version('torch'))"

# rank 1 ends at once: no other rank may be hurried by that
SAVE = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(*_):
    time.sleep(0 if rank == "1" else 60)
    print("saved", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.full
@pytest.mark.parametrize("python", PYTHONS)
def test_a_rank_has_all_of_the_grace_whatever_torchrun_would_give_it(runs: Runs, python: str) -> None:
    torch = subprocess.run([python, "-c", VERSION], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    run = runs.start(SAVE, nproc=(2, 2), torchrun=True, torch=torch, python=python, grace=120)
    for node, ranks in ((0, (0, 1)), (1, (2, 3))):
        for rank in ranks:
            run.wait_for("ready", f"1.{rank}.out", node, timeout=90.0)
    assert run.stop()["remaining"] == []
    assert [record["verdict"]["state"] for record in run.wait_over(60.0)] == ["killed", "killed"]
    written = {**run.journal(0), **run.journal(1)}
    assert [written[f"1.{rank}.out"] for rank in range(4)] == [b"ready\nsaved\n"] * 4
