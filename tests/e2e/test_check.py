"""`check` names what is wrong with a host, and the host, and how to mend it; of healthy hosts it says nothing.

Every fault of breakages.py is made for real. Here a part of them; all: `make breakages`.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lab.lab import Lab

from .breakages import CASES, Case, Overrides, give_gpus
from .driver import ok, orch, script

EVERYTHING = bool(os.environ.get("DDP_ORCH_ALL_BREAKAGES"))
CHOSEN = [one for one in CASES if one.short or EVERYTHING]


def check(
    lab: Lab, overrides: Overrides, *options: str, job: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    inventory = lab.inventory(**overrides)
    hosts = [inventory] if job is None else ["@slurm", "--with", inventory]
    return orch(lab, "check", *hosts, "--json", *options, env=job)


def findings_of(result: subprocess.CompletedProcess[str], code: int = 0) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(ok(result, code).stdout)["findings"]
    return findings


def alarms(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in findings if one["severity"] != "note"]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_what_is_broken_is_named_with_its_host_and_a_fix_and_gone_when_it_is_mended(lab3: Lab, case: Case) -> None:
    base = give_gpus(lab3) if case.gpus else {}
    options = [case.level] if case.level else []
    with case.break_(lab3) as overrides:
        result = check(lab3, {**base, **overrides}, *options, job=case.job)
    findings = findings_of(result, case.exit_code)
    named = [one for one in findings if one["code"] == case.code and one["severity"] == case.severity]
    assert named, findings
    guilty = sorted({host for one in named for host in one["hosts"]})
    assert guilty == [f"node-{number}" for number in case.guilty], findings
    assert all(one["fix"] and one["evidence"] for one in named), named
    assert any(case.fix in one["fix"] for one in named), named
    assert any(case.says in one["message"] for one in named), named
    assert any(case.evidence in line for one in named for line in one["evidence"]), named
    others = {one["code"] for one in alarms(findings)} - {case.code, *case.allowed}
    assert not others, findings
    assert alarms(findings_of(check(lab3, base, *options))) == []


@pytest.mark.timeout(900)
def test_of_healthy_hosts_no_check_says_anything(lab3: Lab) -> None:
    """No false alarm in fifty checks, the network between the hosts included."""
    for _ in range(50 if EVERYTHING else 2):
        assert alarms(findings_of(check(lab3, {}))) == []


def test_a_deep_check_runs_collectives_and_finds_nothing_on_healthy_hosts(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    argv = ["ddp-orch", "check", str(inventory), "--deep", "--json"]
    process = lab2.popen(argv, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True)
    os.close(theirs)
    shown = []
    reader = threading.Thread(target=lambda: shown.extend(iter(lambda: _read(ours), b"")))
    reader.start()
    out, _ = process.communicate(timeout=200)
    reader.join(20)
    os.close(ours)
    assert process.returncode == 0 and b"importing torch" in b"".join(shown)  # it takes long, and is seen to go on
    result = json.loads(out)
    assert alarms(result["findings"]) == []
    measured = result["measured"]
    assert {(one["host"], one["rank"]) for one in measured} == {("node-0", 0), ("node-1", 1)}
    reduces = [one for one in measured if one["what"] == "all_reduce"]
    assert {one["bytes"] for one in reduces} == {1 << 12, 1 << 20, 1 << 24} and all(one["right"] for one in reduces)
    assert all(one["tflops"] > 0 for one in measured if one["what"] == "product")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has its other side open
        return b""


def test_up_refuses_what_a_check_would_find_and_starts_it_all_the_same_if_told_to(lab2: Lab) -> None:
    script(lab2, "print('started')\n")
    few = {"defaults": {"user": "ann", "python": lab2.python, "setup": ["ulimit -n 128"]}}
    inventory = lab2.inventory(run={"launcher": "direct"}, **few)
    refused = ok(orch(lab2, "up", inventory, "--", "train.py"), 3)
    assert "limit-nofile" in refused.stderr and "node-[0-1]" in refused.stderr and "nofile 65536" in refused.stderr
    assert "started" not in refused.stdout
    forced = ok(orch(lab2, "up", inventory, "--skip-check", "--", "train.py"))
    assert forced.stdout.count("started") == 2
    assert forced.stderr.count("limit-nofile") == 1


def test_a_home_that_hosts_share_is_a_note(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, shared_home=True)
    (finding,) = findings_of(check(lab, {}, "--quick"))
    assert (finding["severity"], finding["code"], finding["hosts"]) == (
        "note",
        "home-on-shared-disk",
        ["node-0", "node-1"],
    )


JOIN = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("joined", os.environ["RANK"])
dist.destroy_process_group()
"""

# What ended launches by hand, in minutes or never: it works now, or is refused before anything is started.
BY_HAND: dict[str, tuple[str, int]] = {
    "own_name_unknown": ("hostname-unresolvable", 0),
    "silent_name_server": ("dns-slow", 0),
    "port_held_by_ourselves": ("port-in-use", 5),
    "no_such_interface": ("gloo-ifname-no-match", 3),
}


@pytest.mark.parametrize("name", BY_HAND if EVERYTHING else ["no_such_interface"])
def test_what_ended_launches_by_hand_works_or_is_refused_with_its_cause(lab3: Lab, name: str) -> None:
    code, exit_code = BY_HAND[name]
    (case,) = [one for one in CASES if one.name == name]
    script(lab3, JOIN)
    with case.break_(lab3) as overrides:
        result = orch(lab3, "up", lab3.inventory(**overrides), "--", "train.py")
    ok(result, exit_code)
    assert f"[{code}]" in result.stderr
    assert result.stdout.count("joined") == (3 if exit_code == 0 else 0)
