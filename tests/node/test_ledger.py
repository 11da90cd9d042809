"""What hosts remember of real runs that ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from lab.waiting import wait_until
from local_runs import Run, Runs, impatient_program, local_runs

from orchestrator.node.host import processes

WORK = "import time; print('begun', flush=True); time.sleep(600)"


def remembered(run: Run, node: int) -> list[dict[str, Any]]:
    ledger: list[dict[str, Any]] = run.hosts[node].session.request("list", {})["ledger"]
    return [line for line in ledger if line["run_id"] == run.run_id]


def test_all_hosts_of_a_run_remember_how_it_ended_and_whose_failure_it_was(runs: Runs) -> None:
    run = runs.start(WORK, nproc=(1, 1))
    run.wait_for("begun", "1.1.out", 1)
    (rank,) = [one.pid for one in run.members() if processes.environment(one.pid).get("RANK") == "1"]
    os.kill(rank, signal.SIGKILL)
    run.wait_over()
    for node in (0, 1):
        (line,) = remembered(run, node)
        assert (line["state"], line["node"], line["attempts"]) == ("failed", node, 1)
        assert [(one["host"], one["code"]) for one in line["failures"]] == [("host-1", "worker-sigkilled")]


def test_a_rank_that_its_user_ends_by_a_signal_says_nothing_of_its_host(runs: Runs) -> None:
    run = runs.start(WORK, nproc=(1, 1))
    run.wait_for("begun", "1.1.out", 1)
    question = {
        "run_id": run.run_id,
        "signal": int(signal.SIGSEGV),
        "ranks": [1],
        "only_if_caught": False,
        "dry": False,
    }
    assert run.hosts[1].session.request("signal", question)["signaled"] == [1]
    run.wait_over()
    for node in (0, 1):
        (line,) = remembered(run, node)
        assert [(one["host"], one["code"]) for one in line["failures"]] == [("host-1", "script-exception")]
        assert "ddp-orch signal" in line["failures"][0]["what"]


def test_a_failure_that_a_restart_followed_is_remembered_too(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(os.environ['RANK'] == '1' and os.environ['DDP_ORCH_ATTEMPT'] == '1')"
    with local_runs(tmp_path, impatient_program()) as runs:
        run = runs.start(code, nproc=(1, 1), options="max_restarts: 1")
        run.wait_over()
        for node in (0, 1):
            (line,) = remembered(run, node)
            assert (line["state"], line["attempts"]) == ("succeeded", 2)
            assert [(one["host"], one["attempt"]) for one in line["failures"]] == [("host-1", 1)]


def test_a_run_that_was_stopped_has_no_failure(runs: Runs) -> None:
    run = runs.start(WORK)
    run.wait_for("begun", "1.0.out")
    run.stop(grace=1.0)
    wait_until(lambda: remembered(run, 0), 10, "the run is remembered")
    (line,) = remembered(run, 0)
    assert (line["state"], line["failures"]) == ("killed", [])
