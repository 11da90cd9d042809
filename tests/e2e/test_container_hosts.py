"""Hosts that are containers, as rented ones are: no init, 64 MiB of /dev/shm, sshd on another port."""

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
