"""The time between the failure of an attempt and the start of the next one: what can be done earlier is."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, changed_program, local_runs

from orchestrator.node.host import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts run Linux")

FAILS_ONCE = "import os, sys; sys.exit(os.environ['DDP_ORCH_ATTEMPT'] == '1')"
IGNORES = """
import os, signal, sys, time
if os.environ["DDP_ORCH_ATTEMPT"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(300)
"""


def time_of(run: Run, event: str) -> float | None:
    """Of the first one."""
    lines = (run.folder() / "gang.jsonl").read_text().splitlines()
    return next((entry["fields"]["at"] for entry in map(json.loads, lines) if entry.get("event") == event), None)


def test_an_attempt_begins_with_the_last_check_and_not_at_the_next_tick(tmp_path: Path) -> None:
    # ticks every 5 s
    with local_runs(tmp_path, changed_program("head.py", {b"\nEARLY = 0.9": b"\nEARLY = 9.9"})) as runs:
        run = runs.start(FAILS_ONCE, options="max_restarts: 1")
        found = wait_until(lambda: time_of(run, "PortFound"), 30.0, "the second attempt begins")
        checked = time_of(run, "Checked")
        run.wait_over()
    assert checked is not None and found - checked < 1.0


def test_the_process_of_the_health_check_starts_while_ranks_are_being_stopped(tmp_path: Path) -> None:
    longer = {b"\nFAILURE_GRACE = 1.0": b"\nFAILURE_GRACE = 60."}
    with local_runs(tmp_path, changed_program("gang_state.py", longer)) as runs:
        run = runs.start(IGNORES, nproc=[1, 1], options="max_restarts: 1")
        for node in (0, 1):
            run.wait_for("ready", f"1.{node}.out", node)
        recorder = run.recorder()
        assert recorder is not None

        def health_checks() -> list[processes.Process]:
            below = processes.descendants(recorder.pid)
            return [each for each in below if "health" in processes.command(each.pid)]

        (first, second) = (rank_of(run, node) for node in (0, 1))
        wait_until(lambda: not health_checks(), 10.0, "that of the start has ended")
        processes.send(second, signal.SIGKILL)
        (check,) = wait_until(health_checks, 20.0, "the process of the next check waits")
        assert processes.alive(first)
        processes.send(first, signal.SIGKILL)
        (record, _) = run.wait_over()
        assert record["verdict"]["state"] == "succeeded"
        assert not processes.alive(check)


def rank_of(run: Run, node: int) -> processes.Process:
    recorder = run.recorder(node)
    (rank,) = (status.process for status in processes.below(run.guard(node).pid, [recorder.pid if recorder else -1]))
    return rank
