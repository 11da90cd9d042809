"""A host boots after its run was stopped: the guard that its crontab starts finds nobody, and raises no alarm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e.driver import assert_clean, ok, orch, runs, script, start, wait_for_state
from lab.lab import Lab
from lab.waiting import wait_until

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"


def news(lab: Lab) -> list[str]:
    """The state in each message that was sent, by any host."""
    files = [file for file in (host.home / "news" for host in lab.hosts) if file.exists()]
    return [json.loads(line)["state"] for file in files for line in file.read_text().splitlines()]


def end_of(lab: Lab, inventory: Any, run_id: str) -> tuple[str, str]:
    page = json.loads(ok(orch(lab, "describe", run_id, "-i", inventory, "--json")).stdout)
    return page["state"], page["ended_at"]


@pytest.mark.parametrize(
    ("head_lost", "victim"),
    [("elect", 0), ("elect", 2), ("stop", 0), ("stop", 1)],
    ids=["first of several heads", "elects", "the head", "the host that tells of the loss of the head"],
)
def test_a_host_that_boots_when_its_run_was_stopped_raises_no_alarm(lab3: Lab, head_lost: str, victim: int) -> None:
    options = {"launcher": "direct", "max_restarts": 3, "autostart": "cron", "head_lost": head_lost}
    timing = {"lease": 3, "rejoin_timeout": 10, "grace": 1}
    inventory = lab3.inventory(run={**options, **timing}, notify={"command": "cat >> ~/news"})
    run_id = start(lab3, inventory, "--", script(lab3, WAITS))
    wait_for_state(lab3, inventory, run_id, "running")
    host = lab3.hosts[victim]
    host.crash()
    wait_until(lambda: "waiting" in news(lab3), 60, "a host tells that the run waits")
    assert orch(lab3, "kill", run_id, "-i", inventory).returncode == 4
    wait_until(lambda: news(lab3) == ["waiting", "killed"], 30, "the host that told of the waiting tells of the end")
    end = end_of(lab3, inventory, run_id)
    assert end[0] == "killed"
    host.boot()
    assert end_of(lab3, inventory, run_id) == end
    host.popen(["cron", "-f"], "root")
    wait_until(lambda: not host.sh("crontab -l").stdout, 60, "the line in the crontab removes itself")
    assert_clean(lab3, run_id)
    assert end_of(lab3, inventory, run_id) == end and runs(lab3, inventory)[run_id]["state"] == "killed"
    assert news(lab3) == ["waiting", "killed"]
    ok(orch(lab3, "kill", run_id, "-i", inventory))


def test_a_run_that_is_stopped_while_its_head_leaves_tells_of_its_end(lab3: Lab) -> None:
    """Between two heads, one of the others does."""
    inventory = lab3.inventory(
        run={"launcher": "direct", "max_restarts": 3, "nnodes": "2:3"}, notify={"command": "cat >> ~/news"}
    )
    run_id = start(lab3, inventory, "--", script(lab3, WAITS))
    wait_for_state(lab3, inventory, run_id, "running")
    drain = lab3.popen(["ddp-orch", "drain", "-i", str(inventory), run_id, "node-0"], cwd=lab3.controller_home)
    wait_until(lambda: "another head now" in orch(lab3, "logs", run_id, "-i", inventory).stdout, 60, "it leaves")
    ok(orch(lab3, "kill", run_id, "-i", inventory))
    drain.wait(60)
    wait_until(lambda: "killed" in news(lab3), 30, "a host tells of the end")
    assert news(lab3).count("killed") == 1
    assert_clean(lab3, run_id)
