"""Hosts that are containers, as rented ones are: no init, 64 MiB of /dev/shm, another port of sshd, only root."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import COUNTER, counts, lines_of, ok, orch, script, start, wait_for_state

PORT = 2222
KILLS_ITSELF = "import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)"


@pytest.fixture
def containers(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    lab = make_lab(2, ports=(PORT,))
    for host in lab.hosts:
        host.disk("/dev/shm", "64m")
        os.kill(host.init, signal.SIGSTOP)  # reaps nothing from now on
    yield lab
    for host in lab.hosts:
        os.kill(host.init, signal.SIGCONT)


def inventory_of(lab: Lab) -> Path:
    return lab.inventory(hosts=[{"name": host.name, "address": host.address, "port": PORT} for host in lab.hosts])


def zombies(lab: Lab) -> list[str]:
    command = "grep -hs ') Z 1 ' /proc/[0-9]*/stat"
    return [line for host in lab.hosts for line in host.sh(command, "root").stdout.splitlines()]


@pytest.mark.lab
def test_runs_in_containers_without_an_init_end_as_elsewhere(containers: Lab) -> None:
    lab, inventory = containers, inventory_of(containers)
    found = json.loads(orch(lab, "check", inventory, "--quick", "--json").stdout)["findings"]
    assert {"zombies-not-reaped", "nccl-shm-exhausted"} <= {finding["code"] for finding in found}

    finished = start(lab, inventory, "--", script(lab, COUNTER), "3", "0")
    wait_for_state(lab, inventory, finished, "succeeded")
    assert counts(lines_of(lab, inventory, finished)) == {0: [0, 1, 2], 1: [0, 1, 2]}

    failed = start(lab, inventory, "--", script(lab, KILLS_ITSELF, "dies.py"))
    wait_for_state(lab, inventory, failed, "failed")

    endless = start(lab, inventory, "--", script(lab, COUNTER), "100000", "0.1")
    wait_for_state(lab, inventory, endless, "running")
    ok(orch(lab, "kill", endless, "-i", inventory))
    wait_until(lambda: not lab.marked(), 5, "no process of a run is left")
    assert zombies(lab)  # or this was no container


# a rank fails once, after it has saved something
FAILS_ONCE = """
import os, sys, time
mark = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "failed" + os.environ["RANK"])
again = os.path.exists(mark)
open(mark, "w").close()
print("again" if again else "first", flush=True)
if os.environ["RANK"] == "1" and not again:
    os._exit(3)
time.sleep(0 if again else 60)
"""

MOVE_KEYS_TO_ROOT = r"""
users=$(sed 's#^\(root:.*\):/root:#\1:/home/root:#' /etc/passwd)
echo "$users" > /etc/passwd
mkdir -m 0700 /home/root && mkdir -m 0700 /home/root/.ssh
cp /home/ann/.ssh/authorized_keys /home/root/.ssh
cat /dev/null > /home/ann/.ssh/authorized_keys
"""


@pytest.fixture
def rented(containers: Lab) -> Lab:
    """Only root can log in, and its shell has nothing but PATH; there is no cron and no systemd."""
    for host in containers.hosts:
        host.sh(MOVE_KEYS_TO_ROOT, "root", check=True)
        host.sh("if [ -e /usr/bin/crontab ]; then mount --bind /dev/null /usr/bin/crontab; fi", "root", check=True)
    return containers


@pytest.mark.full
@pytest.mark.lab
def test_rented_hosts_train_restart_and_end_as_elsewhere(rented: Lab) -> None:
    lab = rented
    hosts = [{"name": host.name, "address": host.address, "user": "root", "port": PORT} for host in lab.hosts]
    inventory = lab.inventory(hosts=hosts, run={"max_restarts": 1, "launcher": "direct"})
    found = json.loads(ok(orch(lab, "check", inventory, "--quick", "--json")).stdout)["findings"]
    assert {"zombies-not-reaped", "nccl-shm-exhausted"} <= {finding["code"] for finding in found}
    assert not [finding for finding in found if finding["severity"] == "error"], found

    restarted = start(lab, inventory, "--", script(lab, FAILS_ONCE, "once.py"))
    run = wait_for_state(lab, inventory, restarted, "succeeded")
    assert run["attempt"] == 2

    endless = start(lab, inventory, "--", script(lab, COUNTER), "100000", "0.1")
    wait_for_state(lab, inventory, endless, "running")
    lab.hosts[1].sshd_kill_sessions()
    wait_until(lambda: len(counts(lines_of(lab, inventory, endless))) == 2, 30, "the run goes on without its session")
    ok(orch(lab, "kill", endless, "-i", inventory))
    wait_until(lambda: not lab.marked(), 5, "no process of a run is left")

    with_cron = lab.inventory(name="cron.yaml", hosts=hosts, run={"max_restarts": 1, "autostart": "cron"})
    found = json.loads(orch(lab, "check", with_cron, "--quick", "--json").stdout)["findings"]
    assert "autostart-unusable" in {finding["code"] for finding in found if finding["severity"] == "error"}, found
