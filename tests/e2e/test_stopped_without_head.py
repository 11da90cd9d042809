"""A run is stopped while its head is off: what the commands tell of it stays the same after the head has booted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, ok, orch, script, start, wait_for_state

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
OPTIONS = {"launcher": "direct", "nnodes": "2:3", "lease": 3, "rejoin_timeout": 120, "max_restarts": 5}


def stop_without_head(lab: Lab, **more: Any) -> str:
    """The hosts with ranks lose their power, and the run is stopped on the spares, which are no majority."""
    hosts = [{"name": host.name, "address": host.address, "spare": number > 1} for number, host in enumerate(lab.hosts)]
    inventory = lab.inventory(run={**OPTIONS, **more}, hosts=hosts)
    run_id = start(lab, inventory, "--", script(lab, WAITS))
    wait_for_state(lab, inventory, run_id, "running")
    lab.hosts[1].crash()
    lab.hosts[0].crash()
    wait_until(lambda: json.loads(orch(lab, "ps", "--json").stdout)[0]["waits"], 60, "the run waits")
    first = orch(lab, "kill", run_id)
    assert first.returncode == 4 and "could not verify node-[0-1]" in first.stderr, first.stderr
    return run_id


def told(lab: Lab, run_id: str) -> tuple[Any, ...]:
    """The state of the run, its end, and its events, as the commands show them."""
    page = json.loads(orch(lab, "describe", run_id, "--json").stdout)
    (listed,) = (run for run in json.loads(orch(lab, "ps", "--all", "--json").stdout) if run["run_id"] == run_id)
    happened = json.loads(orch(lab, "events", run_id, "--json").stdout)["events"]
    assert [event["what"] for event in page["events"]] == [event["what"] for event in happened]
    waited = orch(lab, "wait", run_id)
    assert (listed["state"], waited.returncode) == (page["state"], 130), waited
    return page["state"], page["attempt"], page["ended_at"], happened


@pytest.mark.full
def test_a_run_that_was_stopped_while_its_head_was_off_stays_stopped(lab4: Lab) -> None:
    run_id = stop_without_head(lab4)
    before = told(lab4, run_id)
    assert before[:2] == ("killed", 1)
    kinds = [event["kind"] for event in before[-1]]
    assert kinds == ["attempt", "failure", "change", "request", "end"], before[-1]
    lost, by = before[-1][1]["what"], before[-1][3]["what"]
    assert "node-[0-1]" in lost and "lost" in lost and "root@controller" in by
    again = orch(lab4, "kill", run_id)
    assert again.returncode == 4 and "already" in again.stderr and "no process" not in again.stderr, again.stderr
    for number in (0, 1):
        lab4.hosts[number].boot()
        assert told(lab4, run_id) == before
    again = ok(orch(lab4, "kill", run_id))
    assert "already ended (killed)" in again.stderr and "0 processes" not in again.stderr, again.stderr
    assert told(lab4, run_id) == before
    assert "has ended: killed" in ok(orch(lab4, "revive", run_id), 2).stderr
    assert "State:         killed" in ok(orch(lab4, "describe", run_id)).stdout
    diagnosed = ok(orch(lab4, "diagnose", run_id)).stdout
    assert "user-interrupt" in diagnosed, diagnosed
    assert_clean(lab4, run_id)


@pytest.mark.full
def test_it_stays_stopped_after_guards_that_booted_with_their_hosts_gave_up(lab4: Lab) -> None:
    run_id = stop_without_head(lab4, autostart="cron", rejoin_timeout=45)
    before = told(lab4, run_id)
    for host in lab4.hosts[:2]:
        host.boot()
        host.popen(["cron", "-f"], "root")
    for host in lab4.hosts[:2]:
        wait_until(lambda host=host: not host.sh("crontab -l").stdout, 90, "the line in the crontab removes itself")
    assert_clean(lab4, run_id)
    assert told(lab4, run_id) == before
