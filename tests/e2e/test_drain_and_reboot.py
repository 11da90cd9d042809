"""Hosts are drained, rebooted and powered off: what the commands show, and who brings a host back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from orchestrator.output.lines import parse_time

from .driver import assert_clean, code, ok, orch, script, start

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"


def events(lab: Lab, run_id: str) -> str:
    return orch(lab, "events", run_id).stdout


@pytest.mark.parametrize("command", [("wait",), pytest.param(("logs", "-f"), marks=pytest.mark.full)], ids="-".join)
def test_a_rebooted_host_comes_back_although_another_one_was_drained(lab4: Lab, command: tuple[str, ...]) -> None:
    options = {"launcher": "direct", "nnodes": "1:4", "max_restarts": 5, "lease": 3}
    inventory = lab4.inventory(run=options)
    run_id = start(lab4, inventory, "--", script(lab4, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab4, run_id), 30, "the first attempt")
    assert orch(lab4, "drain", run_id, "node-3").returncode == 0
    wait_until(lambda: "attempt 2 started" in events(lab4, run_id), 30, "an attempt without the drained host")
    lab4.hosts[2].crash()
    wait_until(lambda: "attempt 3 started" in events(lab4, run_id), 60, "an attempt without the lost host")
    lab4.hosts[2].boot()
    follows = lab4.popen(["ddp-orch", *command, run_id], stdout=-1, stderr=-2)
    try:
        assert follows.stdout is not None
        seen: list[str] = []
        for line in follows.stdout:
            seen.append(line)
            if "node-2 is back" in line:
                break
        else:
            raise AssertionError("".join(seen))
        wait_until(lambda: "node-2 is back" in events(lab4, run_id), 30, "the host in the events")
    finally:
        follows.terminate()
        orch(lab4, "kill", run_id, "--grace", "0")
        follows.wait()


def test_of_the_two_hosts_that_are_left_one_may_be_lost(lab3: Lab) -> None:
    options = {"launcher": "direct", "nnodes": "1:3", "max_restarts": 5, "lease": 3}
    run_id = start(lab3, lab3.inventory(run=options), "--", script(lab3, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab3, run_id), 30, "the first attempt")
    assert orch(lab3, "drain", run_id, "node-1").returncode == 0
    wait_until(lambda: "attempt 2 started" in events(lab3, run_id), 30, "an attempt without the drained host")
    lab3.hosts[2].crash()
    wait_until(lambda: "attempt 3 started" in events(lab3, run_id), 60, "an attempt of the head alone")
    assert orch(lab3, "kill", run_id, "--grace", "0", "--hosts", "node-0").returncode == 0


def test_other_hosts_know_the_events_of_a_run_whose_head_is_off(lab3: Lab) -> None:
    run_id = start(lab3, lab3.inventory(run={"launcher": "direct", "max_restarts": 1}), "--", script(lab3, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab3, run_id), 30, "the first attempt")
    assert orch(lab3, "kill", run_id, "--grace", "0").returncode == 0
    known = events(lab3, run_id)
    lab3.hosts[0].crash()
    result = orch(lab3, "events", run_id)
    assert result.returncode == 0 and "node-0 does not answer" in result.stderr, result.stderr
    begun = [line.split(" s  ")[1] for line in known.splitlines() if "attempt 1 started" in line]
    assert begun and begun[0] in result.stdout


@pytest.mark.full
def test_the_loss_of_a_head_that_nobody_replaces_is_an_event(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 1, "lease": 3})
    run_id = start(lab2, inventory, "--", script(lab2, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab2, run_id), 30, "the first attempt")
    lab2.hosts[0].crash()
    wait_until(lambda: "node-0, the head," in events(lab2, run_id), 60, "the loss of the head")
    (loss,) = [line for line in events(lab2, run_id).splitlines() if "the head" in line]
    assert "node-0, the head," in orch(lab2, "describe", run_id).stdout
    assert orch(lab2, "kill", run_id, "--grace", "0").returncode == 4
    assert loss in events(lab2, run_id)


@pytest.mark.full
def test_all_commands_say_for_which_host_a_run_waits(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 1, "lease": 3})
    run_id = start(lab2, inventory, "--", script(lab2, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab2, run_id), 30, "the first attempt")
    lab2.hosts[1].crash()

    def asked() -> dict[str, Any]:
        (run,) = json.loads(orch(lab2, "ps", "-i", inventory, "--json").stdout)
        return dict(run)

    wait_until(lambda: asked()["state"] == "waiting", 60, "the run waits")
    waits = asked()["waits"]
    assert (
        waits.keys() == {"hosts", "until", "no_majority"} and waits["hosts"] == ["node-1"] and not waits["no_majority"]
    )
    assert 0 < parse_time(waits["until"], time.time()) - time.time() < 600
    told = orch(lab2, "events", run_id).stdout.splitlines()[-1]
    assert "node-1" in told and f"{waits['until'][:19]}Z" in told
    shown = orch(lab2, "ps", "-i", inventory).stderr + orch(lab2, "describe", run_id).stdout
    shown += orch(lab2, "diagnose", run_id).stderr
    shown += orch(lab2, "wait", run_id, "--timeout", "3s").stderr
    shown += lab2.run(["timeout", "12", "ddp-orch", "logs", "-f", run_id], cwd=code(lab2)).stderr
    assert shown.count(f"{waits['until'][:19]}Z") == 6, shown  # twice in describe
    lab2.hosts[1].boot()
    ok(orch(lab2, "kill", run_id, "--grace", "0"))
    assert_clean(lab2, run_id)


@pytest.mark.full
def test_a_host_that_was_drained_while_it_was_off_is_not_offered_to_the_run_again(lab3: Lab) -> None:
    options = {"launcher": "direct", "nnodes": "2:3", "max_restarts": 5, "lease": 3}
    run_id = start(lab3, lab3.inventory(run=options), "--", script(lab3, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab3, run_id), 30, "the first attempt")
    lab3.hosts[2].crash()
    wait_until(lambda: "attempt 2 started" in events(lab3, run_id), 60, "an attempt without the lost host")
    ok(orch(lab3, "drain", run_id, "node-2"))
    off = orch(lab3, "ps")
    assert "drained node-2" in off.stdout and "no data" not in off.stdout, off.stdout
    assert "drained" in orch(lab3, "describe", run_id).stdout
    again = ok(orch(lab3, "drain", run_id, "node-2"), 2)
    assert "already" in again.stderr
    lab3.hosts[2].boot()
    follows = lab3.popen(["ddp-orch", "logs", "-f", run_id], stdout=-1, stderr=-2)
    try:
        assert follows.stdout is not None
        assert any("node-2" in line and "drained" in line for line in follows.stdout)
        listed = ok(orch(lab3, "ps"))
        assert "drained node-2" in listed.stdout and "revive" not in listed.stderr, listed.stdout + listed.stderr
        (run,) = json.loads(ok(orch(lab3, "ps", "--json")).stdout)
        assert [node["role"] for node in run["nodes"]] == ["head", "team", "left"]
        assert "revive" not in ok(orch(lab3, "describe", run_id)).stdout
        revived = ok(orch(lab3, "revive", run_id))
        assert "node-2 takes part" not in revived.stderr and "drained" in revived.stderr, revived.stderr
        assert json.loads(ok(orch(lab3, "revive", run_id, "--json")).stdout)["revived"] == []
        assert not lab3.hosts[2].marked(run_id)
        assert "drained" in ok(orch(lab3, "add", run_id, "node-2"), 2).stderr
    finally:
        follows.terminate()
        orch(lab3, "kill", run_id, "--grace", "0")
        follows.wait()
    assert_clean(lab3, run_id)


def test_without_a_majority_no_host_can_be_drained_or_added_and_the_way_out_is_named(lab4: Lab) -> None:
    options = {"launcher": "direct", "nnodes": "2:4", "max_restarts": 5, "lease": 3}
    inventory = lab4.inventory(run=options)
    run_id = start(lab4, inventory, "--", script(lab4, WAITS))
    wait_until(lambda: "attempt 1 started" in events(lab4, run_id), 30, "the first attempt")
    for node in (1, 3):
        lab4.hosts[node].crash()
    # before the hosts know it, a request is refused for want of a decision, and is not carried out later
    early = orch(lab4, "drain", run_id, "node-1", "--json")
    assert early.returncode == 4 and "majority" in early.stderr, early.stderr

    def asked() -> dict[str, Any]:
        (run,) = json.loads(orch(lab4, "ps", "-i", inventory, "--json").stdout)
        return dict(run)

    wait_until(lambda: asked()["waits"], 60, "the run waits")
    assert asked()["waits"]["no_majority"] is True
    for command in (("drain", run_id, "node-1"), ("drain", run_id, "node-2"), ("add", run_id, "node-1")):
        refused = orch(lab4, *command)
        assert refused.returncode == 4, refused.stderr
        words = ("majority", "ddp-orch revive", "ddp-orch restart --hosts 'node-[0,2]'")
        assert all(word in refused.stderr for word in words), refused.stderr
    for command in (("ps",), ("describe", run_id), ("diagnose", run_id)):
        shown = orch(lab4, *command)
        assert "majority" in shown.stdout + shown.stderr and "restart" in shown.stdout + shown.stderr
    lab4.hosts[1].boot()
    wait_until(lambda: "again" in orch(lab4, "revive", run_id).stderr, 30, "a majority")
    wait_until(lambda: "attempt 2 started" in events(lab4, run_id), 60, "an attempt of three hosts")
    assert "drained" not in orch(lab4, "ps").stdout  # no refused request was carried out
    orch(lab4, "kill", run_id, "--grace", "0")
    assert_clean(lab4, run_id)
