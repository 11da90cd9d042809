"""Reaching hosts: any login shell, a shared home, hosts that cannot be reached, and the commands that need no run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from lab.lab import Lab

from .driver import COUNTER, assert_clean, counts, lines_of, ok, orch, runs, script, start

NOISE = {
    "bash": (".bashrc", "echo hello from bashrc; printf 'no newline'; echo to stderr >&2\n"),
    "zsh": (".zshenv", "echo hello from zshenv; printf '\\033[31mred'\n"),
    "fish": (".config/fish/config.fish", "echo hello from fish\n"),
    "csh": (".cshrc", "echo hello from cshrc\n"),
}


@pytest.mark.parametrize("shell", NOISE)
def test_a_noisy_login_shell_does_no_harm(make_lab: Callable[..., Lab], shell: str) -> None:
    lab = make_lab(2, shells=(shell,))
    name, text = NOISE[shell]
    for host in lab.hosts:
        path = host.home / name
        host.sh(f"mkdir -p $(dirname ~/{name}) && cat > ~/{name}", input=text, check=True)
        assert path.exists()
    inventory = lab.inventory(
        run={"launcher": "direct"},
        hosts=[{"name": host.name, "address": host.address, "env": {"X": "it's $HOME!"}} for host in lab.hosts],
    )
    result = ok(orch(lab, "up", inventory, "--", script(lab, "import os; print('x is', os.environ['X'])")))
    assert result.stdout.count("x is it's $HOME!") == 2
    assert ok(orch(lab, "exec", inventory, "--", "echo", "it's a $HOME!")).stdout.count("it's a $HOME!\n") == 1


def test_two_hosts_with_one_home_never_write_the_same_file(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, shared_home=True)
    inventory = lab.inventory(run={"launcher": "direct"})
    run_id = start(lab, inventory, "--", script(lab, COUNTER), "100", "0.01")
    ok(orch(lab, "logs", "-f", run_id, "-i", inventory))
    assert counts(lines_of(lab, inventory, run_id)) == {0: list(range(100)), 1: list(range(100))}
    folders = lab.hosts[0].sh(f"ls -d ~/.local/state/ddp-orch/*/runs/{run_id}").stdout.split()
    assert len(folders) == 2
    assert_clean(lab)


def test_every_host_that_cannot_be_reached_is_named_with_its_reason(lab4: Lab) -> None:
    inventory = lab4.inventory()
    lab4.hosts[1].sshd_stop()
    lab4.hosts[2].cut()
    result = ok(orch(lab4, "up", inventory, "--", script(lab4, "print(1)"), timeout=60), 4)
    told = result.stderr[result.stderr.index("error: ") :]  # before it, it may say whom it waits for
    assert "node-1: " in told and "refused" in told
    assert "node-2: " in told
    assert "node-0" not in told and "node-3" not in told
    assert "2 of 4 hosts" in result.stderr
    lab4.hosts[1].sshd_start()
    lab4.hosts[2].heal()
    assert runs(lab4, inventory) == {}
    assert_clean(lab4)


def test_an_unknown_host_key_is_refused_with_its_fingerprint(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    (lab.controller_home / ".ssh" / "known_hosts").write_text("")
    inventory = lab.inventory()
    result = ok(orch(lab, "up", inventory, "--hosts", "node-0"), 4)
    assert "node-0" in result.stderr and "SHA256:" in result.stderr
    assert re.search(r"\bnode-\[0-1\]: host key: .*\bknown_hosts\b", ok(orch(lab, "up", inventory), 4).stderr)
    accepting = lab.inventory(ssh={"host_keys": "accept-new"}, run={"launcher": "direct"})
    ok(orch(lab, "up", accepting, "--", script(lab, "print(1)")))


def test_a_dry_run_and_config_touch_no_host(lab2: Lab) -> None:
    inventory = lab2.inventory()
    before = {host.name: host.sh("ls -a ~").stdout for host in lab2.hosts}
    for host in lab2.hosts:
        host.cut()
    plan = json.loads(
        ok(
            orch(
                lab2, "up", inventory, "--dry-run", "--json", "-e", "LR=1", "--", script(lab2, "print(1)"), "--x", "y z"
            )
        ).stdout
    )
    assert [node["command"][1:] for node in plan["nodes"]] == [["-u", "train.py", "--x", "y z"]] * 2
    assert plan["nodes"][1]["env"]["LR"] == "1"
    assert "--node-rank=1" in plan["nodes"][1]["agent"]
    ok(orch(lab2, "config", inventory))
    assert json.loads(ok(orch(lab2, "config", inventory, "--json")).stdout)["hosts"][0]["user"] == "ann"
    for host in lab2.hosts:
        host.heal()
    assert {host.name: host.sh("ls -a ~").stdout for host in lab2.hosts} == before


def test_exec_folds_equal_output_and_ends_with_the_worst_code(lab4: Lab) -> None:
    inventory = lab4.inventory()
    assert ok(orch(lab4, "exec", inventory, "--", "echo", "hi")).stdout == "node-[0-3]: hi\n"
    result = ok(orch(lab4, "exec", inventory, "--", "test $(hostname) = node-2 || exit 7"), 7)
    assert "node-[0-1,3]: exit code 7" in result.stderr
    outputs = json.loads(ok(orch(lab4, "exec", inventory, "--json", "--hosts", "node-[1-2]", "--", "hostname")).stdout)
    assert [(one["host"], one["stdout"], one["exit_code"]) for one in outputs] == [
        ("node-1", "node-1\n", 0),
        ("node-2", "node-2\n", 0),
    ]


def test_a_python_without_torch_is_found_before_the_start(lab2: Lab) -> None:
    inventory = lab2.inventory(
        hosts=[
            {"name": "node-0", "address": lab2.hosts[0].address},
            {"name": "node-1", "address": lab2.hosts[1].address, "python": "/usr/bin/python3"},
        ]
    )
    result = ok(orch(lab2, "up", inventory), 3)
    assert "node-1" in result.stderr and "missing-module-on-host" in result.stderr
    missing = lab2.inventory(defaults={"user": "ann", "python": "/nowhere/python"})
    result = ok(orch(lab2, "up", missing), 3)
    assert "node-[0-1]" in result.stderr and "/nowhere/python" in result.stderr


def test_two_names_for_one_host_are_refused(lab2: Lab) -> None:
    address = lab2.hosts[0].address
    inventory = lab2.inventory(hosts=[{"name": "one", "address": address}, {"name": "other", "address": address}])
    result = ok(orch(lab2, "up", inventory), 3)
    assert "other: " in result.stderr and "[duplicate-host]" in result.stderr


def test_a_blocked_rendezvous_port_is_found_before_the_start(lab2: Lab) -> None:
    inventory = lab2.inventory(cluster_addresses=True)
    lab2.hosts[1].cut("cluster")
    result = ok(orch(lab2, "up", inventory, timeout=60), 3)
    assert re.search(r"\bnode-1: .*\bthe head\b", result.stderr)
    lab2.hosts[1].heal()
    assert_clean(lab2)
