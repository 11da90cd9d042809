"""All hosts of a run with `run.autostart` were rebooted: until cron starts it again, it can be seen and stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.lab import Lab

from .driver import assert_clean, ok, orch, runs, script, start, wait_for_state

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
RUN = {"launcher": "direct", "max_restarts": 5, "grace": 1, "rejoin_timeout": 120}


def crontabs(lab: Lab) -> list[str]:
    return [host.sh("crontab -l").stdout for host in lab.hosts]


def reboot_all(lab: Lab) -> None:
    for host in lab.hosts:
        host.crash()
    for host in lab.hosts:
        host.boot()


def start_and_reboot(lab: Lab, autostart: str = "cron") -> tuple[str, Path]:
    inventory = lab.inventory(run={**RUN, "autostart": autostart})
    run_id = start(lab, inventory, "--name", "nightly", "--", script(lab, WAITS))
    wait_for_state(lab, inventory, run_id, "running")
    reboot_all(lab)
    return run_id, inventory


def test_commands_say_that_cron_starts_the_run_again_and_kill_prevents_it(lab2: Lab) -> None:
    run_id, inventory = start_and_reboot(lab2)
    (listed,) = json.loads(ok(orch(lab2, "ps", inventory, "--json")).stdout)
    assert (listed["run_id"], listed["state"], listed["rejoining"]) == (run_id, "lost", ["node-0", "node-1"])
    for words in (("ps",), ("describe", "-i"), ("logs", "-i"), ("diagnose", "-i")):
        shown = ok(orch(lab2, *words, inventory))
        assert "run.autostart, cron" in " ".join((shown.stdout + shown.stderr).split()), words
    for words in (("wait", "-i"), ("logs", "-f", "-i")):
        shown = orch(lab2, *words, inventory)
        assert shown.returncode == 4 and "run.autostart, cron" in shown.stderr, (words, shown.stderr)
    before = crontabs(lab2)
    assert all(run_id in lines for lines in before)
    assert f"ddp-orch kill {run_id}" in ok(orch(lab2, "kill", "--leftovers", "-i", inventory)).stderr
    ok(orch(lab2, "prune", inventory))
    assert "kill" in ok(orch(lab2, "prune", inventory, "--run", "nightly"), 2).stderr
    assert crontabs(lab2) == before
    told = ok(orch(lab2, "kill", "-i", inventory)).stderr
    assert "autostart line" in told and "node-[0-1]" in told and run_id in told
    assert crontabs(lab2) == ["", ""]
    assert json.loads(ok(orch(lab2, "ps", inventory, "--json")).stdout) == []
    diagnosed = " ".join(ok(orch(lab2, "diagnose", "-i", inventory)).stdout.split())
    assert f"ddp-orch restart {run_id}" in diagnosed and "run.autostart, cron" not in diagnosed
    ok(orch(lab2, "prune", inventory, "--run", "nightly"))


@pytest.mark.full
def test_a_run_comes_back_after_the_leftovers_were_removed_and_restart_and_kill_all_end_it(lab2: Lab) -> None:
    run_id, inventory = start_and_reboot(lab2)
    ok(orch(lab2, "kill", "--leftovers", "-i", inventory))
    ok(orch(lab2, "prune", inventory))
    for host in lab2.hosts:
        host.popen(["cron", "-f"], "root")
    assert wait_for_state(lab2, inventory, run_id, "running")["attempt"] == 2
    assert runs(lab2, inventory)[run_id]["rejoining"] == []
    reboot_all(lab2)
    again = ok(orch(lab2, "restart", "nightly", "-d", "-i", inventory)).stdout.splitlines()[0]
    assert all(again in lines and run_id not in lines for lines in crontabs(lab2))
    reboot_all(lab2)
    killed = json.loads(ok(orch(lab2, "kill", "--all", "--json", "-i", inventory)).stdout)
    assert (killed["run_id"], killed["autostart_removed"]) == (again, ["node-0", "node-1"])
    assert crontabs(lab2) == ["", ""]
    assert_clean(lab2)


def test_a_run_without_autostart_is_not_said_to_come_back(lab2: Lab) -> None:
    _, inventory = start_and_reboot(lab2, "none")
    assert json.loads(ok(orch(lab2, "ps", inventory, "--json")).stdout) == []
    assert "no run.autostart" in " ".join(ok(orch(lab2, "diagnose", "-i", inventory)).stdout.split())
    assert "nothing to stop" in ok(orch(lab2, "kill", "-i", inventory)).stderr
