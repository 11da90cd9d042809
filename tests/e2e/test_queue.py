"""`up --queue` and `any N of` in the lab: turns, hosts that overlap, controllers that die."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from orchestrator.output.lines import rfc3339

from .driver import assert_clean, attached, code, lines_of, ok, orch, runs, script, start, wait_for_state

UNTIL_FILE = """import pathlib, sys, time
while not pathlib.Path(f"/tmp/{sys.argv[1]}").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def inventory(lab3: Lab) -> Path:
    script(lab3, UNTIL_FILE)
    return lab3.inventory(run={"launcher": "direct", "grace": 1})


def end(lab: Lab, name: str) -> None:
    for host in lab.hosts:
        if host.is_up:
            host.sh(f"touch /tmp/{name}")


def begin(lab: Lab, inventory: Path, name: str, hosts: str) -> str:
    return start(lab, inventory, "--hosts", hosts, "--name", name, "--", "train.py", name)


class Queued:
    """An `up --queue -d`, and what it has printed so far."""

    def __init__(self, lab: Lab, inventory: Path, name: str, hosts: str) -> None:
        self.errors = code(lab) / f"{name}.err"
        words = ["ddp-orch", "up", str(inventory), "-d", "--queue", "--hosts", hosts, "--name", name, "--", "train.py"]
        with self.errors.open("w") as errors:
            self.process = lab.popen(
                [*words, name], cwd=code(lab), stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL
            )

    def wait_for(self, text: str, timeout: float = 30) -> None:
        wait_until(lambda: text in self.errors.read_text(), timeout, f"{text!r} in {self.errors.read_text()}")

    def started(self) -> str:
        stdout, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.errors.read_text()
        return str(stdout.split()[0])

    def has_ended(self) -> bool:
        return self.process.poll() is not None


@pytest.mark.timeout(300)
def test_runs_with_overlapping_hosts_start_in_the_order_in_which_they_were_queued(lab3: Lab, inventory: Path) -> None:
    first = begin(lab3, inventory, "first", "node-0,node-1")
    second = Queued(lab3, inventory, "second", "node-1,node-2")
    second.wait_for(f"waiting for run {first} (first, of ")
    third = Queued(lab3, inventory, "third", "node-2,node-0")
    third.wait_for("1 run is ahead: run ")
    listed = json.loads(ok(orch(lab3, "ps", "-i", inventory, "--json")).stdout)
    shown = [(run["name"], run["state"], sorted(node["host"] for node in run["nodes"])) for run in listed]
    assert shown == [
        ("first", "running", ["node-0", "node-1"]),
        ("second", "queued", ["node-1", "node-2"]),
        ("third", "queued", ["node-0", "node-2"]),
    ]
    table = ok(orch(lab3, "ps", "-i", inventory)).stdout.splitlines()
    assert table[2].split()[1:3] == ["second", "queued"] and table[2].endswith("node-[1-2]")
    assert "train.py" in table[2] and re.search(r" 0m[0-9]{2}s ", table[2])
    end(lab3, "third")  # it ends at once when it has begun
    first_ended = rfc3339(time.time())
    end(lab3, "first")
    run = second.started()
    assert not third.has_ended()
    wait_for_state(lab3, inventory, run, "running")
    third.wait_for(f"waiting for run {run} (second, of ")
    end(lab3, "second")
    wait_for_state(lab3, inventory, third.started(), "succeeded")
    of_runs = {run["name"]: run for run in runs(lab3, inventory).values()}
    assert len(of_runs) == 3
    # a run has not run while it waited
    assert of_runs["first"]["started_at"] < first_ended < of_runs["second"]["started_at"]
    assert_clean(lab3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_whose_controller_is_gone_leaves_the_queue(lab3: Lab, inventory: Path, number: signal.Signals) -> None:
    begin(lab3, inventory, "first", "node-0")
    second = Queued(lab3, inventory, "second", "node-[0-1]")
    second.wait_for("queued: waiting for run ")
    third = Queued(lab3, inventory, "third", "node-[0-1]")
    third.wait_for("1 run is ahead")
    second.process.send_signal(number)
    assert second.process.wait(30) == (130 if number == signal.SIGINT else -number)
    end(lab3, "first")
    end(lab3, "third")
    wait_for_state(lab3, inventory, third.started(), "succeeded")
    assert_clean(lab3)


@pytest.mark.timeout(300)
def test_kill_takes_runs_out_of_the_queue(lab3: Lab, inventory: Path) -> None:
    begin(lab3, inventory, "first", "node-0")
    waiting = [Queued(lab3, inventory, name, "node-[0-1]") for name in ("second", "third")]
    for each in waiting:
        each.wait_for("queued: waiting for run ")
    killed = json.loads(ok(orch(lab3, "kill", "second", "-i", inventory, "--json")).stdout)
    assert (killed["left_queue"], killed["killed"]) == ([killed["run_id"]], [])
    assert waiting[0].process.wait(10) == 130 and "nothing was started" in waiting[0].errors.read_text()
    assert [run["state"] for run in runs(lab3, inventory).values()] == ["running", "queued"]
    mistyped = orch(lab3, "kill", "thrid", "-i", inventory)
    assert mistyped.returncode == 2 and not waiting[1].has_ended()
    everything = json.loads(ok(orch(lab3, "kill", "--all", "-i", inventory, "--json")).stdout)
    assert len(everything["left_queue"]) == 1 and everything["killed"]
    assert waiting[1].process.wait(10) == 130
    assert [run["state"] for run in runs(lab3, inventory).values()] == ["killed"]
    assert_clean(lab3)


@pytest.mark.timeout(200)
def test_a_queued_run_starts_with_the_code_as_it_was_when_it_was_queued(lab3: Lab, inventory: Path) -> None:
    first = begin(lab3, inventory, "first", "node-0")
    script(lab3, f"print('old')\n{UNTIL_FILE}")
    second = Queued(lab3, inventory, "second", "node-0")
    second.wait_for(f"waiting for run {first}")
    (code(lab3) / "later.py").write_text("")
    script(lab3, f"import later\nprint('new')\n{UNTIL_FILE}")
    end(lab3, "second")
    end(lab3, "first")
    run = second.started()
    wait_for_state(lab3, inventory, run, "succeeded")
    assert [line["text"] for line in lines_of(lab3, inventory, run, "--stream", "stdout")] == ["old"]


@pytest.mark.timeout(200)
def test_a_mistake_is_reported_at_once_and_not_after_the_wait(lab3: Lab, inventory: Path) -> None:
    first = begin(lab3, inventory, "first", "node-0")
    result = orch(lab3, "up", inventory, "--queue", "--hosts", "node-0", "--", "-m", "no_such_module_here")
    assert result.returncode in (2, 3), result.stderr
    assert "queued" not in result.stderr
    end(lab3, "first")
    wait_for_state(lab3, inventory, first, "succeeded")


@pytest.mark.timeout(300)
def test_hosts_that_are_free_are_chosen(lab3: Lab, inventory: Path) -> None:
    any_of = lab3.inventory(run={"launcher": "direct", "grace": 1}, name="any.yaml")
    text = any_of.read_text()
    first = begin(lab3, inventory, "first", "node-0")
    any_two = ("up", any_of, "--hosts", "any 2", "-d", "--", "train.py", "second")
    chosen = ok(orch(lab3, *any_two)).stdout.split()[0]
    assert [node["host"] for node in runs(lab3, any_of)[chosen]["nodes"]] == ["node-1", "node-2"]
    refused = orch(lab3, *any_two)
    assert refused.returncode == 5 and first in refused.stderr and "--queue" in refused.stderr, (refused.stderr, text)
    end(lab3, "second")
    wait_for_state(lab3, any_of, chosen, "succeeded")
    lab3.hosts[1].crash()
    unreachable = orch(lab3, *any_two)
    assert unreachable.returncode == 5 and "not chosen: node-1" in unreachable.stderr, unreachable.stderr
    end(lab3, "first")
    hosts = "any 2 of [node-0, node-1, node-2]"
    with attached(lab3, any_of, "--queue", "--hosts", hosts, "--", "train.py", "second") as process:
        _, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    listed = json.loads(orch(lab3, "ps", "-i", any_of, "--all", "--json").stdout)  # node-1 does not answer
    newest = max(listed, key=lambda run: str(run["run_id"]))
    assert [node["host"] for node in newest["nodes"]] == ["node-0", "node-2"]


def test_a_queued_run_whose_hosts_answer_late_is_taken_out_of_the_queue_by_its_name(lab3: Lab, inventory: Path) -> None:
    first = begin(lab3, inventory, "first", "node-0,node-1")
    second = Queued(lab3, inventory, "second", "node-1,node-2")
    second.wait_for("waiting for run ")
    for host in lab3.hosts:
        host.delay(400)
    killed = ok(orch(lab3, "kill", "-i", inventory, "second", timeout=120))
    assert "no answer yet" in killed.stderr and "left the queue" in killed.stderr, killed.stderr
    for host in lab3.hosts:
        host.heal()
    end(lab3, "first")
    wait_for_state(lab3, inventory, first, "succeeded")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("starts", [True, pytest.param(False, marks=pytest.mark.full)], ids=["starts", "is-killed"])
def test_wait_of_a_queued_run_waits_for_its_start_and_its_end(lab3: Lab, inventory: Path, starts: bool) -> None:
    begin(lab3, inventory, "first", "node-0,node-1")
    second = Queued(lab3, inventory, "second", "node-1,node-2")
    second.wait_for("waiting for run ")
    errors = code(lab3) / "wait.err"
    with errors.open("w") as file:
        waits = lab3.popen(["ddp-orch", "wait", "-i", str(inventory), "second"], stderr=file)
    wait_until(lambda: "is queued on" in errors.read_text(), 30, "the wait for the start")
    end(lab3, "second")  # it ends at once when it has begun
    if starts:
        end(lab3, "first")
        second.started()
    else:
        ok(orch(lab3, "kill", "-i", inventory, "second"))
        end(lab3, "first")
    assert waits.wait(60) == (0 if starts else 130), errors.read_text()
    assert ("succeeded" if starts else "left the queue") in errors.read_text()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_queued_run_starts_without_a_host_that_it_does_not_need(lab3: Lab) -> None:
    script(lab3, UNTIL_FILE)
    inventory = lab3.inventory(run={"launcher": "direct", "grace": 1, "nnodes": "2:3"})
    first = begin(lab3, inventory, "first", "node-[0-2]")
    second = Queued(lab3, inventory, "second", "node-[0-2]")
    second.wait_for(f"waiting for run {first} (first, of ")
    lab3.hosts[1].crash()
    second.wait_for("node-1 does not answer", 60)
    end(lab3, "first")
    end(lab3, "second")
    started = second.started()
    assert "starting without node-1: " in second.errors.read_text()
    run = json.loads(orch(lab3, "ps", "-i", inventory, "--all", "--json").stdout)[-1]
    assert (run["run_id"], [node["host"] for node in run["nodes"]]) == (started, ["node-0", "node-2"])


def queued_on(lab: Lab, inventory: Path, name: str) -> list[str]:
    listed = json.loads(orch(lab, "ps", "-i", inventory, "--json").stdout)
    return [node["host"] for run in listed if (run["name"], run["state"]) == (name, "queued") for node in run["nodes"]]


@pytest.mark.timeout(300)
def test_a_run_whose_host_is_off_lets_others_pass_and_keeps_its_place(lab3: Lab, inventory: Path) -> None:
    begin(lab3, inventory, "first", "node-0")
    needs_all = Queued(lab3, inventory, "second", "node-[0-2]")
    needs_all.wait_for("waiting for run ")
    lab3.hosts[2].crash()
    needs_all.wait_for("the run needs node-2, which does not answer", 60)
    shown = needs_all.errors.read_text()
    assert "ddp-orch kill " in shown and "--hosts 'node-[0-2]!node-2' -- train.py second" in shown, shown
    wait_until(
        lambda: "(no answer: node-2)" in orch(lab3, "ps", "-i", inventory).stdout, 30, "ps tells for what it waits"
    )
    passes = Queued(lab3, inventory, "third", "node-[0-1]")
    passes.wait_for("queued: waiting for run ")
    end(lab3, "first")
    started = passes.started()
    lab3.hosts[2].boot()
    needs_all.wait_for(f"waiting for run {started} (third, of ", 60)
    last = Queued(lab3, inventory, "last", "node-[0-1]")
    last.wait_for("1 run is ahead: run ")
    end(lab3, "third")
    end(lab3, "second")
    wait_for_state(lab3, inventory, needs_all.started(), "succeeded")
    end(lab3, "last")
    wait_for_state(lab3, inventory, last.started(), "succeeded")


@pytest.mark.timeout(300)
def test_a_restarted_host_is_kept_for_the_run_that_waits_for_it(lab3: Lab) -> None:
    script(lab3, UNTIL_FILE)
    inventory = lab3.inventory(run={"launcher": "direct", "grace": 1, "max_restarts": 1})
    first = begin(lab3, inventory, "first", "node-[0-1]")
    lab3.hosts[1].crash()
    ps = ("ps", "--hosts", "node-0", "-i", inventory, "--json")
    wait_until(lambda: '"waiting"' in orch(lab3, *ps).stdout, 60, "the run waits for node-1")
    lab3.hosts[1].boot()
    refused = orch(lab3, "up", inventory, "-d", "--hosts", "any 2 of node-[1-2]", "--", "train.py", "second")
    assert refused.returncode == 5 and "node-1 is kept for" in refused.stderr, refused.stderr
    second = Queued(lab3, inventory, "second", "any 2 of node-[1-2]")
    second.wait_for(f"node-1 is kept for run {first} (first, of ")
    third = begin(lab3, inventory, "third", "node-1")  # not queued
    wait_for_state(lab3, inventory, third, "running")
    revived = ok(orch(lab3, "revive", "-i", inventory, "first"))
    assert f"node-1 also runs run {third}" in revived.stderr
    end(lab3, "third")
    second.wait_for(f"waiting for run {first} (first, of ")
    end(lab3, "first")
    wait_for_state(lab3, inventory, first, "succeeded")
    end(lab3, "second")
    wait_for_state(lab3, inventory, second.started(), "succeeded")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hosts", ["node-[0-1]", pytest.param("any 2 of node-[0-1]", marks=pytest.mark.full)])
def test_a_run_that_is_restarted_keeps_its_hosts_before_queued_runs(lab3: Lab, inventory: Path, hosts: str) -> None:
    start(lab3, inventory, "--queue", "--hosts", hosts, "--name", "first", "--", "train.py", "first")
    second = Queued(lab3, inventory, "second", "node-[0-1]")
    second.wait_for("waiting for run ")
    new = ok(orch(lab3, "restart", "first", "-i", inventory, "-d")).stdout.split()[0]
    second.wait_for(f"waiting for run {new} (first, of ")
    end(lab3, "first")
    wait_for_state(lab3, inventory, new, "succeeded")
    end(lab3, "second")
    wait_for_state(lab3, inventory, second.started(), "succeeded")


@pytest.mark.timeout(200)
def test_a_run_is_not_stopped_to_be_started_on_gpus_that_others_use(lab3: Lab) -> None:
    script(lab3, UNTIL_FILE)
    inventory = lab3.inventory(
        run={"launcher": "direct", "grace": 1}, defaults={"gpus": [0], "user": "ann", "python": lab3.python}
    )
    up = ("up", inventory, "-d", "--skip-check", "--hosts")
    first, second = (
        ok(orch(lab3, *up, host, "--name", name, "--", "train.py", name)).stdout.split()[0]
        for host, name in (("node-0", "first"), ("node-1", "second"))
    )
    refused = orch(lab3, "restart", "first", "-i", inventory, "-d", "--hosts", "node-1")
    assert refused.returncode == 5 and f"run {second}" in refused.stderr, refused.stderr
    assert runs(lab3, inventory)[first]["state"] == "running" and "was not stopped" in refused.stderr
    ok(orch(lab3, "kill", "--all", "-i", inventory))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("returns", [False, pytest.param(True, marks=pytest.mark.full)], ids=["stays-off", "returns"])
def test_an_unused_host_stands_in_for_one_that_is_off_as_long_as_that_is_off(lab3: Lab, returns: bool) -> None:
    script(lab3, UNTIL_FILE)
    inventory = lab3.inventory(run={"launcher": "direct", "grace": 1, "nnodes": "2"})
    one = lab3.inventory(run={"launcher": "direct", "grace": 1}, name="one.yaml")
    begin(lab3, one, "first", "node-0")
    second = Queued(lab3, inventory, "second", "node-[0-2]")
    second.wait_for("waiting for run ")
    assert queued_on(lab3, inventory, "second") == ["node-0", "node-1"]
    lab3.hosts[1].crash()
    second.wait_for("in place of node-1: node-2", 60)
    wait_until(lambda: queued_on(lab3, inventory, "second") == ["node-0", "node-2"], 30, "a ticket on node-2")
    if returns:
        lab3.hosts[1].boot()
        wait_until(lambda: queued_on(lab3, inventory, "second") == ["node-0", "node-1"], 60, "tickets as before")
    end(lab3, "first")
    end(lab3, "second")
    started = second.started()
    listed = json.loads(orch(lab3, "ps", "-i", inventory, "--all", "--json").stdout)
    hosts = [node["host"] for run in listed if run["run_id"] == started for node in run["nodes"]]
    assert hosts == (["node-0", "node-1"] if returns else ["node-0", "node-2"])


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_candidate_that_is_off_is_missed_only_if_too_few_others_are_left(lab3: Lab, inventory: Path) -> None:
    begin(lab3, inventory, "first", "node-0,node-2")
    second = Queued(lab3, inventory, "second", "any 2 of node-[0-2]")
    third = Queued(lab3, inventory, "third", "any 3 of node-[0-2]")
    second.wait_for("waiting for run ")
    third.wait_for("waiting for run ")
    lab3.hosts[1].crash()
    third.wait_for("the run needs 3 hosts of node-[0-2], and only node-[0,2] of them answers", 60)
    end(lab3, "first")
    second.started()
    third.process.kill()
    third.process.wait(10)
    end(lab3, "second")
