"""Networks that swallow packets, in the lab: every failure within its time, and the other hosts unharmed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lab.lab import CHECKOUT, Lab
from lab.waiting import wait_until

DRIVER = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from orchestrator.inventory import model as inventory
from orchestrator.ssh.dialer import ConnectFailure, Dialer

hosts = inventory.parse(sys.stdin.read(), "inventory.yaml").hosts
limit = float(sys.argv[1])
options = dict(via="paramiko", host_keys="strict", connect_timeout=limit, parallel=64, jump_parallel=8)
dialer = Dialer(inventory.SshOptions(**options))
dialer.prepare(hosts)

def attempt(host):
    began = time.monotonic()
    try:
        pipe = dialer.connect(host).open(sys.argv[2], 10)
        print(json.dumps({"host": host.name, "open": True}), flush=True)
        text = b""
        while part := pipe.recv(1000, None):
            text += part
        result = {"text": text.decode(), "status": pipe.exit_status(1)}
    except ConnectFailure as failure:
        result = {"code": failure.code, "phase": failure.phase, "why": failure.reason}
    print(json.dumps({"host": host.name, "seconds": time.monotonic() - began, **result}), flush=True)

with ThreadPoolExecutor(64) as pool:
    list(pool.map(attempt, hosts))
"""


def start(lab: Lab, hosts: str, command: str = "hostname", timeout: float = 20) -> subprocess.Popen[str]:
    process = lab.popen(
        [sys.executable, "-c", DRIVER, str(timeout), command],
        env={"PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    process.stdin.write(f"hosts: {hosts}\n")
    process.stdin.close()
    return process


def finish(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """What became of each host."""
    assert process.stdout and process.stderr
    lines, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(60) == 0, errors
    assert errors == ""
    results = [json.loads(line) for line in lines.splitlines()]
    return {result["host"]: result for result in results if "seconds" in result}


def test_an_ordinary_user_reaches_all_hosts_by_name(lab3: Lab) -> None:
    results = finish(start(lab3, "[node-0, node-1, node-2]"))
    assert {name: result["text"] for name, result in results.items()} == {
        name: f"{name}\n" for name in ("node-0", "node-1", "node-2")
    }


def test_a_black_hole_costs_the_time_limit_and_slows_no_other(lab3: Lab) -> None:
    lab3.hosts[1].cut("ssh")
    results = finish(start(lab3, "[node-0, node-1, node-2]", timeout=4))
    assert results["node-1"]["code"] == "ssh-unreachable"
    assert 3.5 < results["node-1"]["seconds"] < 6
    assert results["node-0"]["text"] == "node-0\n" and results["node-0"]["seconds"] < 3.5
    assert results["node-2"]["text"] == "node-2\n" and results["node-2"]["seconds"] < 3.5


def test_a_black_hole_behind_a_jump_host_slows_no_other(lab4: Lab) -> None:
    lab4.hosts[1].cut("ssh")
    hosts = "[" + ", ".join(f"{{name: node-{n}, proxy_jump: node-0}}" for n in (1, 2, 3)) + "]"
    results = finish(start(lab4, hosts, timeout=5))
    assert results["node-1"]["code"] == "ssh-unreachable"
    assert results["node-1"]["seconds"] < 7
    assert results["node-2"]["text"] == "node-2\n" and results["node-2"]["seconds"] < 4
    assert results["node-3"]["text"] == "node-3\n"


def test_a_name_server_that_never_answers_costs_the_time_limit_of_that_host_only(lab2: Lab) -> None:
    resolv = Path(f"/proc/{lab2.init}/root/etc/resolv.conf")
    if not resolv.exists():
        pytest.fail("the lab's controller has no resolv.conf")
    lab2.root_run(["/bin/sh", "-c", "cp /etc/resolv.conf /tmp/resolv && echo nameserver 10.77.255.53 > /tmp/silent"])
    lab2.root_run(["mount", "--bind", "/tmp/silent", "/etc/resolv.conf"])
    try:
        results = finish(start(lab2, "[node-0, nowhere.example]", timeout=3))
    finally:
        lab2.root_run(["umount", "/etc/resolv.conf"])
    assert results["nowhere.example"]["code"] == "ssh-name-unresolved"
    assert results["nowhere.example"]["seconds"] < 5
    assert results["node-0"]["text"] == "node-0\n" and results["node-0"]["seconds"] < 3


def test_a_link_that_dies_ends_the_stream_within_fifteen_seconds(lab2: Lab) -> None:
    process = start(lab2, "[node-0]", command="exec sleep 600")
    assert process.stdout
    assert json.loads(process.stdout.readline()) == {"host": "node-0", "open": True}
    began = time.monotonic()
    lab2.hosts[0].cut("ssh")
    results = finish(process)
    assert results["node-0"]["text"] == "" and results["node-0"]["status"] is None
    assert time.monotonic() - began < 40  # paramiko alone notices nothing for 120 s and more


def test_a_slow_and_lossy_link_is_no_failure(lab2: Lab) -> None:
    lab2.hosts[0].delay(150, "ssh")
    results = finish(start(lab2, "[node-0, node-1]"))
    assert results["node-0"]["text"] == "node-0\n" and results["node-1"]["text"] == "node-1\n"


def test_a_host_that_is_up_without_sshd_fails_at_once(lab2: Lab) -> None:
    lab2.hosts[0].sshd_stop()
    results = finish(start(lab2, "[node-0, node-1]"))
    assert results["node-0"]["code"] == "ssh-connection-refused" and results["node-0"]["seconds"] < 3
    assert results["node-1"]["text"] == "node-1\n"


def test_penalties_of_a_wrong_key_do_not_spread(lab2: Lab) -> None:
    """One failed login is one failed login: sshd's log counts a single attempt."""
    host = lab2.hosts[0]
    (host.home / ".ssh/authorized_keys").write_text("")
    results = finish(start(lab2, "[node-0, node-1]"))
    assert results["node-0"]["code"] == "ssh-auth-denied"
    assert results["node-1"]["text"] == "node-1\n"
    log = host.root / "var/log/sshd.log"
    wait_until(log.exists, 5, "sshd has a log")
    assert log.read_text().count("Connection closed by authenticating user ann") <= 1


def test_many_logins_at_once_to_an_sshd_as_it_comes_all_get_in(lab2: Lab) -> None:
    """MaxStartups drops some of more than ten; benchmarks/fan_out.py does it with 128."""
    hosts = "[" + ", ".join(f"{{name: gpu{n}, address: {lab2.hosts[1].address}, user: ann}}" for n in range(32)) + "]"
    results = finish(start(lab2, hosts))
    assert {result["text"] for result in results.values()} == {"node-1\n"} and len(results) == 32


def test_many_logins_at_once_through_a_jump_host_as_it_comes_share_one_connection(lab2: Lab) -> None:
    def accepted() -> int:
        log = lab2.hosts[0].root / "var/log/sshd.log"
        return log.read_text().count("Accepted publickey for ann") if log.exists() else 0

    before = accepted()
    where = f"address: {lab2.hosts[1].address}, user: ann, proxy_jump: node-0"
    results = finish(start(lab2, "[" + ", ".join(f"{{name: gpu{n}, {where}}}" for n in range(32)) + "]"))
    assert {result["text"] for result in results.values()} == {"node-1\n"} and len(results) == 32
    assert accepted() == before + 1
