"""A host loses its power and is booted again, with no other in its place: the run waits for it and continues."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
from e2e.driver import assert_clean, lines_of, ok, orch, runs, script, start, wait_for_state
from lab import systemd
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import FOR_EVER, GLOO, trial

RESTARTS = {"max_restarts": 3, "grace": 2}


@pytest.mark.parametrize("victim", [0, 2], ids=["head", "other"])
def test_a_host_that_is_booted_again_takes_part_again_while_up_follows(lab3: Lab, victim: int) -> None:
    host = lab3.hosts[victim]
    with trial(lab3, lab3.inventory(run=RESTARTS), GLOO, "100", "0.05") as run:
        run.wait_for(f"rank {victim} step 5 ")
        host.crash()
        run.pass_time(15)
        host.boot()
        run.assert_ended(0, "succeeded", within=120, attempt=2)
        assert f"{host.name} is back" in run.errors


def crontab(host: Host) -> list[str]:
    return host.sh("crontab -l").stdout.splitlines()


def test_a_host_rejoins_by_its_crontab_when_it_is_booted(lab3: Lab) -> None:
    host, own_line = lab3.hosts[2], "0 5 * * * echo 100\\% of my own"
    host.sh("crontab -", input=f"{own_line}\n", check=True)
    inventory = lab3.inventory(run={**RESTARTS, "autostart": "cron"})
    run_id = start(lab3, inventory, "--", script(lab3, GLOO), "100", "0.05")
    wait_until(lambda: lines_of(lab3, inventory, run_id, "--grep", "rank 2 step 5 "), 60, "the run trains")
    assert [len(crontab(each)) for each in lab3.hosts] == [1, 1, 2]
    host.crash()
    host.boot()
    host.popen(["cron", "-f"], "root")
    wait_for_state(lab3, inventory, run_id, "succeeded", 120)
    assert_clean(lab3, run_id)
    assert runs(lab3, inventory)[run_id]["attempt"] == 2
    assert [crontab(each) for each in lab3.hosts] == [[], [], [own_line]]
    assert not list(host.home.rglob("autostart.json"))


@pytest.mark.parametrize("head_lost", ["elect", "stop"])
def test_a_power_failure_of_all_hosts_is_no_fault_of_one(lab3: Lab, head_lost: str) -> None:
    inventory = lab3.inventory(run={**RESTARTS, "autostart": "cron", "head_lost": head_lost})
    for _ in range(2):
        run_id = start(lab3, inventory, "--", script(lab3, GLOO), "60", "0.05")
        wait_until(lambda run=run_id: lines_of(lab3, inventory, run, "--grep", "rank 2 step 5 "), 60, "the run trains")
        for host in lab3.hosts:
            host.crash()
        for host in lab3.hosts:
            host.boot()
            host.popen(["cron", "-f"], "root")
        wait_for_state(lab3, inventory, run_id, "succeeded", 120)
        assert runs(lab3, inventory)[run_id]["attempt"] == 2
    assert "failed in" not in orch(lab3, "ps", inventory).stderr
    assert "host-unreliable" not in orch(lab3, "check", inventory, "--quick").stdout
    assert_clean(lab3)


def units(host: Host) -> list[str]:
    """The files of units, and the links that enable them."""
    return [path.name for path in sorted((host.home / ".config/systemd/user").rglob("*.service"))]


def test_a_host_rejoins_by_its_systemd_when_it_is_booted(lab3: Lab) -> None:
    host = lab3.hosts[2]
    inventory = lab3.inventory(run={**RESTARTS, "autostart": "systemd"})
    with contextlib.ExitStack() as lingering:
        for each in lab3.hosts:
            lingering.enter_context(systemd.linger(each))
        run_id = start(lab3, inventory, "--", script(lab3, GLOO), "100", "0.05")
        wait_until(lambda: lines_of(lab3, inventory, run_id, "--grep", "rank 2 step 5 "), 60, "the run trains")
        names = [set(units(each)) for each in lab3.hosts]
        assert [len(units(each)) for each in lab3.hosts] == [2, 2, 2] and len(set.union(*names)) == 3
        host.crash()
        host.boot()
        with systemd.user_manager(host):
            wait_until(lambda: runs(lab3, inventory)[run_id]["attempt"] == 2, 60, "the run continues")
            (name,) = names[2]
            # the command has ended, and its guard lives on
            assert systemctl_value(host, name, "ActiveState") == "inactive" and host.marked(run_id)
            wait_for_state(lab3, inventory, run_id, "succeeded", 120)
    assert_clean(lab3, run_id)
    assert [units(each) for each in lab3.hosts] == [[], [], []]
    assert not list(host.home.rglob("autostart.json"))


def systemctl_value(host: Host, unit: str, name: str) -> str:
    return systemd.systemctl(host, "show", "--value", "--property", name, unit).strip()


def test_a_run_that_is_gone_leaves_no_line_in_a_crontab(lab3: Lab) -> None:
    host = lab3.hosts[2]
    inventory = lab3.inventory(run={**RESTARTS, "autostart": "cron"})
    run_id = start(lab3, inventory, "--", script(lab3, GLOO), FOR_EVER, "0.05")
    host.crash()
    assert orch(lab3, "kill", run_id, "-i", inventory).returncode == 4
    host.boot()
    assert len(crontab(host)) == 1 and crontab(lab3.hosts[0]) == []
    ok(orch(lab3, "kill", run_id, "-i", inventory))
    assert crontab(host) == []
    run_id = start(lab3, inventory, "--", script(lab3, GLOO), FOR_EVER, "0.05")
    host.crash()  # first, as the run still writes there
    for program in (host.home / ".local/state/ddp-orch").glob("node-*"):
        shutil.rmtree(program)
    host.boot()
    assert len(crontab(host)) == 1
    host.popen(["cron", "-f"], "root")
    wait_until(lambda: not crontab(host), 60, "the line removes itself")
    ok(orch(lab3, "kill", run_id, "-i", inventory))


def test_revive_brings_a_host_back_that_nobody_follows(lab3: Lab) -> None:
    inventory = lab3.inventory(run=RESTARTS)
    with trial(lab3, inventory, GLOO, "100", "0.05") as run:
        run.wait_for("rank 1 step 5 ")
        run.up.kill()
        run.up.wait()
        lab3.hosts[1].crash()
        lab3.hosts[1].boot()
        revived = json.loads(ok(orch(lab3, "revive", "--json", "-i", inventory)).stdout)
        assert revived == {"run_id": run.run_id, "revived": ["node-1"], "failed": {}}
        assert json.loads(ok(orch(lab3, "revive", "--json", "-i", inventory)).stdout)["revived"] == []
        ok(orch(lab3, "logs", "-f", "-i", inventory))
        assert run.fact()["state"] == "succeeded"
    result = orch(lab3, "revive", "-i", inventory)
    assert result.returncode == 2 and "restart" in result.stderr


@pytest.mark.timeout(180)
def test_a_run_that_waits_for_its_head_is_restarted_at_once_on_the_hosts_that_are_left(lab3: Lab) -> None:
    inventory = lab3.inventory(run={**RESTARTS, "rejoin_timeout": 600})
    words = ("--name", "mine", "--hosts", "node-[0-1]")
    run_id = start(lab3, inventory, *words, "--", script(lab3, GLOO), "1000", "0.05")
    wait_until(lambda: lines_of(lab3, inventory, run_id, "--grep", "rank 1 step 5 "), 60, "the run trains")
    lab3.hosts[0].crash()

    def state() -> str:
        listed = ok(orch(lab3, "ps", "-i", inventory, "--hosts", "node-1", "--json"))
        return str(next(run["state"] for run in json.loads(listed.stdout) if run["run_id"] == run_id))

    wait_until(lambda: state() == "waiting", 60, "it waits")
    again = ok(orch(lab3, "restart", "mine", "-d", "--hosts", "node-[1-2]", "-i", inventory))
    second = again.stdout.split()[0]
    wait_until(
        lambda: lines_of(lab3, inventory, second, "--host", "node-[1-2]", "--grep", "rank 1 step 5 "), 60, "it trains"
    )
    lab3.hosts[0].boot()
    ok(orch(lab3, "kill", second, "--grace", "0", "-i", inventory))


def test_a_host_that_has_forgotten_the_run_is_not_called_well(lab3: Lab) -> None:
    """As a rented machine that is replaced by a new one under the same name."""
    inventory = lab3.inventory(run={**RESTARTS, "rejoin_timeout": 300})
    run_id = start(lab3, inventory, "--", script(lab3, GLOO), "100", "0.05")
    wait_until(lambda: lines_of(lab3, inventory, run_id, "--grep", "rank 1 step 5 "), 60, "the run trains")
    lab3.hosts[1].crash()
    shutil.rmtree(lab3.hosts[1].home / ".local/state/ddp-orch")
    lab3.hosts[1].boot()
    wait_for_state(lab3, inventory, run_id, "waiting", 60)
    revived = ok(orch(lab3, "revive", run_id, "--json", "-i", inventory), 4)
    assert list(json.loads(revived.stdout)["failed"]) == ["node-1"]
    assert "ddp-orch add" in revived.stderr and "ddp-orch restart" in revived.stderr
    assert "ddp-orch revive" in ok(orch(lab3, "ps", inventory)).stderr
    assert "name" in ok(orch(lab3, "add", "-i", inventory, run_id, "node-1"), 2).stderr
    assert "node-1" in ok(orch(lab3, "kill", run_id, "--grace", "0", "-i", inventory)).stderr
    assert_clean(lab3, run_id)


WAITS_IN_ATTEMPT_1 = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while os.environ["DDP_ORCH_ATTEMPT"] == "1":
    if os.path.exists(os.path.expanduser("~/fail")):
        sys.exit(1)
    time.sleep(0.1)
"""


@pytest.mark.short
def test_a_host_that_is_added_later_is_followed_and_brought_back(lab3: Lab) -> None:
    """Also if the inventory names it only since then."""
    hosts = [{"name": host.name, "address": host.address} for host in lab3.hosts]
    options = {"launcher": "direct", "nnodes": "2:3", "max_restarts": 3, "lease": 3}
    with trial(lab3, lab3.inventory(run=options, hosts=hosts[:2]), WAITS_IN_ATTEMPT_1) as run:
        run.wait_for("rank 1 of 2")
        lab3.inventory(run=options, hosts=hosts)
        ok(orch(lab3, "add", "-i", run.inventory, run.run_id, "node-2"))
        run.wait_for("node-2 was added")
        lab3.hosts[2].crash()
        run.wait_for("trying to connect again")
        lab3.hosts[2].boot()
        run.wait_for("node-2 is back and takes part in the run again")
        (lab3.hosts[0].home / "fail").touch()
        run.wait_for("rank 2 of 3")
        run.assert_ended(0, "succeeded", within=60, attempt=2)
