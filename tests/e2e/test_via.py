"""Runs on hosts that a program reaches: `ssh`, and a command that enters namespaces as `docker exec` does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.host import Host
from lab.lab import Lab

from .driver import COUNTER, assert_clean, counts, lines_of, ok, orch, script, start, wait_for_state

PASSWORD = "correct horse"


def entering(lab: Lab, host: Host) -> dict[str, object]:
    """A host of an inventory that is reached without any network, by joining its namespaces."""
    # pids as seen from the controller, one level inside this machine
    status = Path(f"/proc/{host.init}/status").read_text()
    pid = next(line.split()[2] for line in status.splitlines() if line.startswith("NSpid:"))
    environment = f"env -i HOME=/home/ann USER=ann LANG=C.UTF-8 PATH={Path(lab.python).parent}:/usr/bin:/bin"
    return {
        "name": host.name,
        "user": None,
        "via": f"nsenter --target {pid} --all --setuid 2001 --setgid 2001 {environment}",
    }


def by_openssh(lab: Lab) -> Path:
    return lab.inventory(ssh={"via": "openssh"})


def by_command(lab: Lab) -> Path:
    return lab.inventory(hosts=[entering(lab, host) for host in lab.hosts])


@pytest.mark.parametrize("make_inventory", [by_openssh, pytest.param(by_command, marks=pytest.mark.full)])
def test_a_run_is_started_listed_followed_and_killed(lab2: Lab, make_inventory: Callable[[Lab], Path]) -> None:
    inventory = make_inventory(lab2)
    ok(orch(lab2, "check", inventory, "--quick"))
    finished = start(lab2, inventory, "--", script(lab2, COUNTER), "3", "0")
    wait_for_state(lab2, inventory, finished, "succeeded")
    assert counts(lines_of(lab2, inventory, finished)) == {0: [0, 1, 2], 1: [0, 1, 2]}
    endless = start(lab2, inventory, "--", script(lab2, COUNTER), "100000", "0.1")
    wait_for_state(lab2, inventory, endless, "running")
    ok(orch(lab2, "kill", endless, "-i", inventory))
    assert_clean(lab2, endless)


@pytest.mark.parametrize("make_inventory", [by_openssh, by_command])
def test_exec_gives_the_output_and_the_worst_exit_code(lab2: Lab, make_inventory: Callable[[Lab], Path]) -> None:
    command = "echo \"$USER of $(hostname)\" 'it'\\''s'; [ $(hostname) = node-0 ] || exit 7"
    result = orch(lab2, "exec", make_inventory(lab2), "--json", "--", "sh", "-c", command)
    assert {each["host"]: (each["stdout"], each["exit_code"]) for each in json.loads(result.stdout)} == {
        "node-0": ("ann of node-0 it's\n", 0),
        "node-1": ("ann of node-1 it's\n", 7),
    }


def test_a_cut_host_is_reported_and_slows_no_other(lab3: Lab) -> None:
    inventory = by_openssh(lab3)
    lab3.hosts[1].cut("ssh")
    result = orch(lab3, "exec", inventory, "--json", "--", "hostname")
    assert result.returncode == 4
    assert {each["host"] for each in json.loads(result.stdout) if each["stdout"]} == {"node-0", "node-2"}


@pytest.mark.lab
def test_a_command_that_a_signal_ends_has_printed_what_it_has_printed(lab2: Lab) -> None:
    result = orch(lab2, "exec", lab2.inventory(), "--hosts", "node-0", "--", "echo before; kill -KILL $$")
    assert (result.returncode, result.stdout) == (4, "node-0: before\n")
    assert "signal" in result.stderr


def test_a_shared_connection_serves_a_host_that_also_requires_a_password(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, sshd_options={"AuthenticationMethods": "publickey,password", "PasswordAuthentication": "yes"})
    digest = subprocess.run(["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True).stdout
    for host in lab.hosts:
        host._write_etc("shadow", lab.shadow.replace("ann:*:", f"ann:{digest.strip()}:"))
    config = lab.controller_home / ".ssh/config"
    config.write_text("Host *\n    User ann\n    ControlPath ~/.ssh/master-%h\n")
    ask = lab.controller_home / "askpass"
    ask.write_text(f"#!/bin/sh\necho '{PASSWORD}'\n")
    ask.chmod(0o700)

    with_paramiko = orch(lab, "exec", lab.inventory(), "--", "hostname")
    assert with_paramiko.returncode == 4 and "ssh.via: openssh" in with_paramiko.stderr
    inventory = by_openssh(lab)
    without_master = orch(lab, "exec", inventory, "--", "hostname")
    assert without_master.returncode == 4 and "ControlMaster" in without_master.stderr

    env = {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    for host in lab.hosts:
        master = lab.run(["ssh", "-o", "ControlMaster=yes", "-o", "ControlPersist=yes", host.address, "true"], env=env)
        assert master.returncode == 0, master.stderr
    try:
        run_id = start(lab, inventory, "--", script(lab, COUNTER), "3", "0")
        wait_for_state(lab, inventory, run_id, "succeeded")
        assert counts(lines_of(lab, inventory, run_id)) == {0: [0, 1, 2], 1: [0, 1, 2]}
    finally:
        for host in lab.hosts:
            lab.run(["ssh", "-O", "exit", host.address])
