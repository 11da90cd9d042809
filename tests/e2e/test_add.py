"""`add`: a run that a user has started takes one more host."""

from __future__ import annotations

import json
import os
import pty
import re
import select

import pyte
import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .breakages import SYSTEM_PYTHON
from .driver import assert_clean, guards, lines_of, ok, orch, script, start, wait_for_state

WORK = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1], flush=True)
while os.environ["DDP_ORCH_ATTEMPT"] == "1":
    if os.path.exists(os.path.expanduser("~/fail")):
        sys.exit(1)
    time.sleep(0.1)
"""


def test_the_next_attempt_of_a_run_takes_a_host_that_was_added(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct", "nnodes": "2:3", "max_restarts": 1})
    words = ["--hosts", "node-[0-1]", "--", script(lab3, WORK), "on-{host}"]
    run_id = start(lab3, inventory, *words)
    wait_until(lambda: len(lines_of(lab3, inventory, run_id, "--grep", "of 2")) == 2, 60, "the run has begun")
    ok(orch(lab3, "add", "-i", inventory, run_id, "node-1"), 2)
    ok(orch(lab3, "add", "-i", inventory, run_id, "node-7"), 2)
    other = lab3.inventory(name="other.yaml", defaults={"user": "ann", "python": SYSTEM_PYTHON})
    refused = ok(orch(lab3, "add", "-i", other, run_id, "node-2"), 3).stderr
    assert f"ddp-orch setup {other}" in refused and "INVENTORY" not in refused
    added = ok(orch(lab3, "add", "-i", inventory, "--json", run_id, "node-2"))
    assert json.loads(added.stdout) == {"run_id": run_id, "host": "node-2"}
    assert "no head" in added.stderr  # three hosts that start a run would elect one
    (run,) = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--json")).stdout)
    assert [(node["host"], node["node_rank"]) for node in run["nodes"]] == [
        ("node-0", 0),
        ("node-1", 1),
        ("node-2", None),
    ]
    (lab3.hosts[0].home / "fail").touch()
    wait_for_state(lab3, inventory, run_id, "succeeded")
    lines = lines_of(lab3, inventory, run_id, "--attempt", "2", "--grep", "of 3")
    assert sorted((line["host"], line["text"]) for line in lines) == [
        (f"node-{rank}", f"rank {rank} of 3 on-node-{rank}") for rank in range(3)
    ]
    again = ok(orch(lab3, "restart", "-d", run_id))
    assert re.search(r"node-2 .*--hosts", again.stderr)
    wait_for_state(lab3, inventory, again.stdout.split()[0], "succeeded")
    wait_until(lambda: not guards(lab3), 15, "the guards have gone")
    assert_clean(lab3, run_id)


@pytest.mark.full
def test_a_run_that_began_without_a_host_elects_a_head_after_it_was_added(lab3: Lab) -> None:
    run = {"launcher": "direct", "nnodes": "2:3", "max_restarts": 1, "head_lost": "elect", "lease": 3}
    inventory = lab3.inventory(run=run)
    lab3.hosts[2].crash()
    begun = ok(orch(lab3, "up", inventory, "-d", "--", script(lab3, WORK), "x"))
    run_id = begun.stdout.splitlines()[0]
    assert "head, node-0, is lost" in begun.stderr
    describe = ("describe", run_id, "--json")
    assert json.loads(ok(orch(lab3, *describe)).stdout)["if_head_lost"] == "wait"
    lab3.hosts[2].boot()
    added = ok(orch(lab3, "add", "-i", inventory, run_id, "node-2"))
    assert "no head" not in added.stderr
    assert json.loads(ok(orch(lab3, *describe)).stdout)["if_head_lost"] == "elect"
    assert re.search("Head: +node-0; .*elect", ok(orch(lab3, "describe", run_id)).stdout)
    lab3.hosts[0].crash()
    wait_until(lambda: "attempt 2 started" in orch(lab3, "events", run_id).stdout, 60, "the others continue")
    assert json.loads(orch(lab3, *describe).stdout)["head"] == "node-1"
    lab3.hosts[0].boot()
    ok(orch(lab3, "kill", "-i", inventory, "--grace", "0", run_id))


def test_a_machine_that_is_replaced_under_another_name_is_added_without_advice_for_a_host_that_is_gone(
    lab2: Lab,
) -> None:
    """Three hosts of the run would elect a head, but the inventory has two."""
    run = {"launcher": "direct", "nnodes": "1:2", "max_restarts": 3, "lease": 3}
    run_id = start(lab2, lab2.inventory(run=run), "--", script(lab2, "import time\ntime.sleep(600)\n"))
    lab2.hosts[1].crash()
    lab2.hosts[1].boot()
    lab2.hosts[1].sh("rm -r ~/.local/state/ddp-orch", check=True)
    hosts = [{"name": "node-0", "address": lab2.hosts[0].address}, {"name": "new", "address": lab2.hosts[1].address}]
    inventory = lab2.inventory(run=run, hosts=hosts)
    added = ok(orch(lab2, "add", "-i", inventory, run_id, "new")).stderr
    assert "takes part" in added and "--hosts" not in added, added
    ok(orch(lab2, "kill", "-i", inventory, "--grace", "0", run_id))


def test_where_no_host_can_be_added_the_command_to_start_again_names_only_hosts_that_answer(lab3: Lab) -> None:
    run = {"launcher": "node", "max_restarts": 1, "lease": 3}
    inventory = lab3.inventory(run=run, ssh={"connect_timeout": 3})
    words = ("--hosts", "node-[0-1]", "--", "python", script(lab3, "import time\ntime.sleep(600)\n"))
    run_id = start(lab3, inventory, *words)
    lab3.hosts[1].crash()
    refused = ok(orch(lab3, "add", "-i", inventory, run_id, "node-2"), 2).stderr
    assert f"ddp-orch restart {run_id} --hosts 'node-[0,2]'" in refused, refused
    ok(orch(lab3, "kill", "-i", inventory, "--hosts", "!node-1", "--grace", "0", run_id))


def test_top_shows_a_host_that_is_added_meanwhile(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct"})
    run_id = start(lab3, inventory, "--hosts", "node-[0-1]", "--", script(lab3, WORK), "x")
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    top = lab3.popen(["ddp-orch", "top", "-i", str(inventory)], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)

    def shown() -> list[str]:
        """The hosts that have a row."""
        while select.select([ours], [], [], 0.1)[0]:
            stream.feed(os.read(ours, 65536))
        return [line.split()[0] for line in screen.display if re.match(r"node-\d ", line)]

    try:
        wait_until(lambda: shown() == ["node-0", "node-1"], 60, "the board is there")
        ok(orch(lab3, "add", "-i", inventory, run_id, "node-2"))
        wait_until(lambda: shown() == ["node-0", "node-1", "node-2"], 60, "it shows the new host")
    except AssertionError:
        raise AssertionError("\n".join(screen.display)) from None
    finally:
        top.kill()
        top.wait()
        os.close(ours)
    ok(orch(lab3, "kill", "-i", inventory, "--grace", "1", run_id))


def test_a_host_that_was_added_takes_the_place_of_one_that_is_drained(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct"})
    run_id = start(lab3, inventory, "--hosts", "node-[0-1]", "--", script(lab3, WORK), "x")
    wait_until(lambda: len(lines_of(lab3, inventory, run_id, "--grep", "of 2")) == 2, 60, "the run has begun")
    ok(orch(lab3, "add", "-i", inventory, run_id, "node-2"))
    ok(orch(lab3, "drain", "-i", inventory, run_id, "node-1"))
    ok(orch(lab3, "add", "-i", inventory, run_id, "node-1"), 2)
    wait_for_state(lab3, inventory, run_id, "succeeded")
    lines = lines_of(lab3, inventory, run_id, "--attempt", "2", "--grep", "rank")
    assert sorted((line["host"], line["text"]) for line in lines) == [
        ("node-0", "rank 0 of 2 x"), ("node-2", "rank 1 of 2 x")
    ]  # fmt: skip
    assert_clean(lab3, run_id)
