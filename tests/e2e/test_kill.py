"""`kill` ends exactly the run: every process of it, and none else's."""

from __future__ import annotations

import json
import re

from lab.lab import Lab
from lab.waiting import wait_until

from .driver import COUNTER, assert_clean, ok, orch, runs, script, start, wait_for_state

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:  # double fork, in a session of its own, deaf
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(1000)
environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_ORCH")}
subprocess.Popen(["sleep", "1001"], start_new_session=True, env=environment)  # without the mark
print("ready", flush=True)
time.sleep(1000)
"""


def sleepers(lab: Lab) -> list[str]:
    return [
        " ".join(process.argv)
        for host in lab.hosts
        for process in host.processes()
        if process.argv[:1] == ("sleep",) and process.uid == 2001
    ]


def ready(lab: Lab, inventory: object, run_id: str) -> None:
    def both() -> bool:
        return orch(lab, "logs", run_id, "-i", str(inventory)).stdout.count("ready") >= 2

    wait_until(both, 60, "both ranks are ready")


def test_deaf_double_forked_and_unmarked_children_are_ended_and_proof_is_given(lab2: Lab) -> None:
    inventory = lab2.inventory()
    run_id = start(lab2, inventory, "--", script(lab2, STUBBORN))
    ready(lab2, inventory, run_id)
    result = ok(orch(lab2, "kill", run_id, "-i", inventory, "--grace", "1", "--json"))
    proof = json.loads(result.stdout)
    assert proof["run_id"] == run_id and proof["remaining"] == [] and proof["unreachable"] == []
    assert {one["host"] for one in proof["killed"]} == {"node-0", "node-1"}
    assert len(proof["killed"]) >= 2 * 6  # torchrun, the rank, three daemons, the sleeper
    # the rendezvous on the head, and the link of each node
    assert sorted(port["host"] for port in proof["ports_freed"]) == ["node-0", "node-0", "node-1"]
    assert sleepers(lab2) == []
    assert runs(lab2, inventory)[run_id]["state"] == "killed"
    assert_clean(lab2)


def test_workers_whose_torchrun_was_killed_do_not_survive(lab2: Lab) -> None:
    inventory = lab2.inventory()
    run_id = start(lab2, inventory, "--", script(lab2, STUBBORN))
    ready(lab2, inventory, run_id)
    (agent,) = [process.pid for process in lab2.hosts[1].marked(run_id) if "torch.distributed.run" in process.argv]
    lab2.hosts[1].sh(f"kill -9 {agent}", check=True)
    run = wait_for_state(lab2, inventory, run_id, "failed")
    assert run["nodes"][1]["signal"] == "SIGKILL"
    assert sleepers(lab2) == []
    assert_clean(lab2)


def test_another_run_and_other_peoples_look_alikes_survive(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    name = script(lab2, COUNTER)
    bystanders = []
    for host in lab2.hosts:
        for user in ("ann", "bob"):
            host.sh("printf 'import time\\ntime.sleep(1000)\\n' > ~/train.py", user)
            bystanders.append(host.popen([lab2.python, "-u", "train.py", "1000", "0.1"], user))
    other = start(lab2, inventory, "--", name, "1000", "0.1")
    begun = ok(orch(lab2, "up", inventory, "-d", "--", name, "1000", "0.1"))
    victim = begun.stdout.strip()
    assert re.search(rf"\bnode-\[0-1\]: .*{other}.*\bCPUs\b", begun.stderr)
    wait_for_state(lab2, inventory, victim, "running")
    killed = ok(orch(lab2, "kill", victim, "-i", inventory, "--grace", "1"))
    assert re.search(rf"\b{victim}: 2 processes .*\b2 hosts\b.*\bverified\b", killed.stderr)
    again = ok(orch(lab2, "kill", victim, "-i", inventory))
    assert re.search(rf"\b{victim} .*\(killed\)", again.stderr)
    assert all(process.poll() is None for process in bystanders)
    states = {run_id: run["state"] for run_id, run in runs(lab2, inventory).items()}
    assert (states[other], states[victim]) == ("running", "killed")
    assert not lab2.marked(victim)
    third = start(lab2, inventory, "--", name, "1000", "0.1")
    newest = ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    assert f"stopped {third}" in newest.stderr
    assert re.search(rf"\b{other} .*ddp-orch kill --all\b", newest.stderr)
    ok(orch(lab2, "kill", "--all", "-i", inventory, "--grace", "1"))
    for process in bystanders:
        process.kill()
        process.wait()
    assert_clean(lab2)


def test_a_killed_guard_ends_the_run_and_kill_finds_nothing_left(lab2: Lab) -> None:
    inventory = lab2.inventory()
    run_id = start(lab2, inventory, "--", script(lab2, STUBBORN))
    ready(lab2, inventory, run_id)
    guard = runs(lab2, inventory)[run_id]["nodes"][1]["pid"]
    (unmarked,) = [process.pid for process in lab2.hosts[1].processes() if process.argv == ("sleep", "1001")]
    record = f"cat ~/.local/state/ddp-orch/*/runs/{run_id}/procs.json"
    wait_until(lambda: f"[{unmarked}, " in lab2.hosts[1].sh(record).stdout, 10, "the guard has seen the unmarked child")
    lab2.hosts[1].sh(f"kill -9 {guard}", check=True)
    wait_for_state(lab2, inventory, run_id, "failed")
    result = json.loads(ok(orch(lab2, "kill", "-i", inventory, "--json")).stdout)
    assert result["remaining"] == []
    assert sleepers(lab2) == []
    assert_clean(lab2)
