"""`max_restarts`: the whole gang is started again, and goes on from its snapshot."""

from __future__ import annotations

import re
import signal

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, attached, lines_of, ok, orch, runs, script, start, wait_for_state

AGAIN = """
import os, sys, time
attempt, restarts = os.environ["DDP_ORCH_ATTEMPT"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, "restarts", restarts, "port", os.environ["MASTER_PORT"], flush=True)
if attempt == "1" and os.environ["RANK"] == "1":
    sys.exit("only once")
"""


def test_a_failed_attempt_is_started_again_on_another_port(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 2})
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, AGAIN)))
    seen = re.findall(r"attempt (\d) restarts (\d) port (\d+)", result.stdout)
    assert {(attempt, restarts) for attempt, restarts, _ in seen} == {("1", "0"), ("2", "1")}
    ports = {attempt: {port for one, _, port in seen if one == attempt} for attempt in "12"}
    assert len(ports["1"]) == len(ports["2"]) == 1 and ports["1"] != ports["2"]
    (run,) = runs(lab2, inventory).values()
    assert (run["state"], run["attempt"]) == ("succeeded", 2)
    assert "only once" in " ".join(line["text"] for line in lines_of(lab2, inventory, run["run_id"], "--attempt", "1"))
    assert_clean(lab2)


def test_a_script_that_cannot_start_is_not_started_again_and_again(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 5})
    hidden = "import importlib; importlib.import_module('no_such_module_at_all')"  # from the check
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, hidden)), 1)
    *_, last = [line for line in result.stdout.splitlines() if "ddp-orch: " in line]
    assert re.search(r"\brestarted: \S", last)
    (run,) = runs(lab2, inventory).values()
    assert run["attempt"] == 3
    assert_clean(lab2)


DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1 if os.environ["RANK"] == "1" else 300)
sys.exit("told to fail")
"""


def test_ctrl_c_while_a_failed_attempt_is_being_stopped_stops_the_run(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 5, "grace": 2})
    with attached(lab2, inventory, "--", script(lab2, DEAF)) as up:
        assert up.stdout is not None
        assert any("first failure" in line for line in up.stdout)
        up.send_signal(signal.SIGINT)
        up.stdout.read()
        assert up.wait(30) == 130
    (run,) = runs(lab2, inventory).values()
    assert (run["state"], run["attempt"]) == ("killed", 1)
    assert_clean(lab2)


def test_a_killed_worker_is_replaced_and_training_goes_on_from_the_snapshot(lab2: Lab) -> None:
    threads = {"OMP_NUM_THREADS": "1"}  # the hosts share the cores of this machine
    inventory = lab2.inventory(run={"max_restarts": 1, "args": ["--save-every=10", "--epochs=25"], "env": threads})
    run_id = start(lab2, inventory)

    def is_training() -> bool:
        return any("step:20 " in line["text"] for line in lines_of(lab2, inventory, run_id))

    wait_until(is_training, 90, "step 20")
    (worker,) = [one.pid for one in lab2.hosts[1].marked(run_id) if "trainer" in one.argv]
    lab2.hosts[1].sh(f"kill -9 {worker}", check=True)
    wait_for_state(lab2, inventory, run_id, "succeeded", 120)
    text = "\n".join(line["text"] for line in lines_of(lab2, inventory, run_id, "--attempt", "2"))
    resumed = re.search(r"step:(\d+)", re.search(r".*resum.*", text)[0])  # type: ignore[index]
    assert resumed and int(resumed[1]) >= 10
    assert_clean(lab2)


def test_a_host_that_is_down_at_the_start_is_replaced_by_the_spare(lab3: Lab) -> None:
    hosts = [{"name": host.name, "address": host.address, "spare": host is lab3.hosts[2]} for host in lab3.hosts]
    inventory = lab3.inventory(hosts=hosts, run={"launcher": "direct"}, ssh={"connect_timeout": 3})
    lab3.hosts[1].cut()
    result = ok(orch(lab3, "up", inventory, "--", script(lab3, "import os; print('rank', os.environ['RANK'])")))
    assert re.search(r"^warning: .*\bnode-1: ", result.stderr, re.MULTILINE)
    assert sorted(re.findall(r"(node-\d):\d.*rank (\d)", result.stdout)) == [("node-0", "0"), ("node-2", "1")]
    assert_clean(lab3)


def test_a_host_that_is_down_at_the_start_is_replaced_by_one_beyond_nnodes(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct", "nnodes": "1:2"}, ssh={"connect_timeout": 3})
    lab3.hosts[1].cut()
    result = ok(orch(lab3, "up", inventory, "--", script(lab3, "import os; print('rank', os.environ['RANK'])")))
    assert re.search(r"^warning: .*\bnode-1: ", result.stderr, re.MULTILINE)
    assert sorted(re.findall(r"(node-\d):\d.*rank (\d)", result.stdout)) == [("node-0", "0"), ("node-2", "1")]
    assert_clean(lab3)


@pytest.mark.parametrize(
    ("resume", "advice"),
    [("none", "run.resume: head"), pytest.param("head", "$DDP_ORCH_OUTPUT_DIR", marks=pytest.mark.full)],
)
def test_a_restart_tells_of_a_snapshot_that_stays_beside_the_code(lab2: Lab, resume: str, advice: str) -> None:
    saves = """
import os, sys, time
if os.environ["DDP_ORCH_ATTEMPT"] == "1":
    if os.environ["RANK"] == "0":
        os.makedirs("checkpoints", exist_ok=True)
        open("checkpoints/last.pt", "w").close()
        sys.exit(1)
    time.sleep(1e6)
while not os.path.exists(os.path.expanduser("~/end")):
    time.sleep(0.05)
"""
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 1, "resume": resume, "grace": 1})
    run_id = start(lab2, inventory, "--", script(lab2, saves))

    def told() -> list[str]:
        return [line["text"] for line in lines_of(lab2, inventory, run_id, "--grep", "checkpoints/last.pt")]

    wait_until(told, 60, "the head tells of it")
    (line,) = told()
    assert "node-0 has" in line and advice in line
    assert line.removeprefix("ddp-orch: ") in ok(orch(lab2, "events", run_id, "-i", inventory)).stdout
    for host in lab2.hosts:
        (host.home / "end").touch()
    wait_for_state(lab2, inventory, run_id, "succeeded")
