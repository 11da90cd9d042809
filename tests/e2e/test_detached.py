"""A run belongs to its hosts: it outlives its controller, is found again, and its output is whole."""

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

from .driver import (
    COUNTER,
    assert_clean,
    attached,
    code,
    counts,
    lines_of,
    ok,
    orch,
    runs,
    script,
    start,
    wait_for_state,
)


def test_up_d_prints_the_id_first_and_logs_f_ends_with_the_runs_outcome(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "50", "0.02")
    assert run_id in runs(lab2, inventory)
    followed = ok(orch(lab2, "logs", "-f", "--json", "-i", inventory))
    lines = [json.loads(line) for line in followed.stdout.splitlines()]
    assert counts(lines) == {0: list(range(50)), 1: list(range(50))}
    assert all(set(line) == {"at", "host", "rank", "stream", "attempt", "text"} for line in lines)
    assert_clean(lab2, run_id)


def test_logs_can_be_narrowed(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    start(lab2, inventory, "--name", "narrow", "--", script(lab2, COUNTER), "20", "0")
    ok(orch(lab2, "logs", "-f", "narrow", "-i", inventory))
    assert counts(lines_of(lab2, inventory, "narrow", "--rank", "1")) == {1: list(range(20))}
    assert counts(lines_of(lab2, inventory, "narrow", "--host", "node-0")) == {0: list(range(20))}
    assert counts(lines_of(lab2, inventory, "narrow", "--tail", "3")) == {0: [17, 18, 19], 1: [17, 18, 19]}
    assert ok(orch(lab2, "logs", "nosuch", "-i", inventory), 2).stdout == ""


@pytest.mark.parametrize("after", [5, 40, 120])
def test_a_killed_controller_and_cut_sessions_lose_no_line(lab2: Lab, after: int) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    with attached(lab2, inventory, "--", script(lab2, COUNTER), "200", "0.02") as up:
        seen = 0
        assert up.stdout
        for line in up.stdout:
            seen += " count " in line
            if seen == after:
                break
        up.send_signal(signal.SIGKILL)
        up.wait()
    for host in lab2.hosts:
        host.sshd_kill_sessions()
    (run_id,) = runs(lab2, inventory)  # on a busy machine it may have ended by now
    followed = ok(orch(lab2, "logs", "-f", "--json", run_id, "-i", inventory))
    lines = [json.loads(line) for line in followed.stdout.splitlines()]
    assert counts(lines) == {0: list(range(200)), 1: list(range(200))}
    assert_clean(lab2, run_id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_up_that_a_signal_ends_says_that_the_run_continues(lab2: Lab, number: signal.Signals) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    before = signal.signal(number, signal.SIG_DFL)  # it is ignored if these tests were started with nohup
    with attached(lab2, inventory, "--", script(lab2, COUNTER), "100", "0.05") as up:
        signal.signal(number, before)
        assert up.stdout and up.stderr
        assert any(" count " in line for line in up.stdout)
        up.send_signal(number)
        assert "run continues" in up.stderr.read()
        assert up.wait() == -number
    (run_id,) = runs(lab2, inventory)  # on a busy machine it may have ended by now
    ok(orch(lab2, "logs", "-f", run_id, "-i", inventory))
    assert_clean(lab2, run_id)


def test_logs_f_goes_on_by_itself_when_its_sessions_are_cut(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    start(lab2, inventory, "--", script(lab2, COUNTER), "200", "0.1")
    follow = lab2.popen(
        ["ddp-orch", "logs", "-f", "--json", "-i", str(inventory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert follow.stdout and follow.stderr
    lines = []
    for text in follow.stdout:
        lines.append(json.loads(text))
        if len(lines) in (30, 300):
            for host in lab2.hosts:
                host.sshd_kill_sessions()
    assert follow.wait() == 0
    assert counts(lines) == {0: list(range(200)), 1: list(range(200))}
    notices = follow.stderr.read().splitlines()
    assert any(re.match(r"node-\d: \D*\bagain$", line) for line in notices), notices


@pytest.mark.parametrize(
    "delay", [0.5, 1.5, 2.5, *(pytest.param(each, marks=pytest.mark.full) for each in (1.0, 2.0, 3.0))]
)
def test_a_controller_killed_during_the_launch_leaves_a_whole_run_or_nothing(lab2: Lab, delay: float) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    up = lab2.popen(
        ["ddp-orch", "up", str(inventory), "--", script(lab2, COUNTER), "600", "0.1"],
        cwd=code(lab2),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        up.wait(delay)  # a moment within the launch: the parameter is what is tried, not a condition
    except subprocess.TimeoutExpired:
        up.send_signal(signal.SIGKILL)
        up.wait()

    def settled() -> bool:
        marked = lab2.marked()
        everywhere = len(marked) == len(lab2.hosts)
        return everywhere or not any(process.uid for host in lab2.hosts for process in host.processes())

    wait_until(settled, 60, "the run goes on everywhere, or nothing is left")
    if lab2.marked():
        found = [run for run in runs(lab2, inventory).values() if run["state"] == "running"]
        assert len(found) == 1
        ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


def test_ctrl_c_stops_the_run_gracefully(lab2: Lab) -> None:
    text = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    inventory = lab2.inventory(run={"launcher": "direct"})
    with attached(lab2, inventory, "--", script(lab2, text)) as up:
        assert up.stdout and up.stderr
        ready = 0
        for line in up.stdout:
            ready += "ready" in line
            if ready == 2:
                break
        up.send_signal(signal.SIGINT)
        rest = up.stdout.read()
        assert up.wait(30) == 130
        assert rest.count("saved") == 2
        assert "stopped by Ctrl-C" in up.stderr.read()
    assert_clean(lab2)


def test_ctrl_c_that_ends_the_reader_of_the_output_too_stops_the_run_and_says_so(lab2: Lab) -> None:
    """As `up | tee` in a terminal: both get the signal, and what the ranks say next finds nobody."""
    inventory = lab2.inventory(run={"launcher": "direct"})
    with attached(lab2, inventory, "--", script(lab2, COUNTER), "100000", "0.02") as up:
        assert up.stdout and up.stderr
        assert up.stdout.readline()
        up.send_signal(signal.SIGINT)
        up.stdout.close()
        said = up.stderr.read()
        assert up.wait(30) == 130
    assert re.search(r"^error: .*\boutput\b", said, re.MULTILINE)
    assert "ddp-orch logs" not in said and "Traceback" not in said
    (run_id,) = runs(lab2, inventory)
    wait_for_state(lab2, inventory, run_id, "killed")
    assert_clean(lab2)


def test_ctrl_c_in_logs_f_ends_the_looking_only_and_says_so(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "2000", "0.02")
    argv = ["ddp-orch", "logs", "-f", "-i", inventory]
    with lab2.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout
        assert following.stdout.readline()
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=20)
    assert following.returncode == 0 and errors.count("\n") == 1 and f"ddp-orch kill {run_id}" in errors
    assert runs(lab2, inventory)[run_id]["state"] == "running"
    ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


def test_kill_without_a_run_finds_nothing_and_succeeds(lab2: Lab) -> None:
    inventory = lab2.inventory()
    result = ok(orch(lab2, "kill", "-i", inventory, "--json"))
    assert json.loads(result.stdout) == {
        "run_id": None,
        "killed": [],
        "ports_freed": [],
        "gpus_freed": [],
        "remaining": [],
        "unreachable": [],
    }


def test_a_second_run_of_the_same_name_is_refused_while_the_first_goes_on(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--name", "mine", "--", script(lab2, COUNTER), "1000", "0.1")
    wait_for_state(lab2, inventory, run_id, "running")
    refused = ok(orch(lab2, "up", inventory, "-d", "--name", "mine", "--", script(lab2, COUNTER), "1", "0"), 5)
    assert run_id in refused.stderr
    ok(orch(lab2, "kill", run_id, "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


@pytest.mark.full
def test_a_dead_link_is_found_and_the_logs_go_on_when_it_heals(lab2: Lab) -> None:
    inventory = lab2.inventory(
        cluster_addresses=True, run={"launcher": "direct"}
    )  # the run itself is on the other network
    start(lab2, inventory, "--", script(lab2, COUNTER), "400", "0.1")
    follow = lab2.popen(
        ["ddp-orch", "logs", "-f", "--json", "-i", str(inventory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert follow.stdout and follow.stderr
    lines = [json.loads(follow.stdout.readline()) for _ in range(20)]
    lab2.hosts[1].cut("ssh")
    cut_at = time.monotonic()
    said = follow.stderr.readline()
    assert said.startswith("warning: node-1: ")
    assert time.monotonic() - cut_at <= 40  # paramiko alone notices nothing for 120 s and more
    while not (lines[-1]["host"] == "node-0" and lines[-1]["text"].endswith(" 250")):
        lines.append(json.loads(follow.stdout.readline()))  # what node-0 prints does not wait for node-1
    lab2.hosts[1].heal()
    lines += [json.loads(line) for line in follow.stdout]
    assert follow.wait() == 0, follow.stderr.read()
    assert counts(lines) == {0: list(range(400)), 1: list(range(400))}


CHATTY = """
import os, sys, time
rank = int(os.environ["RANK"])
print("starting", flush=True)
for step in range(3):
    print(f"step:{step} loss:{3 + rank / 10:.1f} token=correct-horse-battery", flush=True)
print("\\x1b]0;title\\x07only I do" if rank == 1 else "the others do", file=sys.stderr, flush=True)
"""


def test_logs_searched_folded_and_written_to_files(lab2: Lab, tmp_path: Path) -> None:
    inventory = lab2.inventory(
        run={"launcher": "direct", "secrets": ["TOKEN"]},
        defaults={"user": "ann", "python": lab2.python, "nproc_per_node": 2},
    )
    secret = {"TOKEN": "correct-horse-battery"}
    run_id = start(lab2, inventory, "--", script(lab2, CHATTY), env=secret)
    ok(orch(lab2, "logs", "-f", "-i", inventory, env=secret))
    found = lines_of(lab2, inventory, run_id, "--grep", r"^step:[12]", "--rank", "1-2", env=secret)
    assert sorted((line["rank"], line["text"]) for line in found) == [
        (rank, f"step:{step} loss:3.{rank} token=***") for rank in (1, 2) for step in (1, 2)
    ]
    assert [line["text"] for line in lines_of(lab2, inventory, run_id, "--stream", "stderr", "--rank", "1")] == [
        "only I do"
    ]
    assert lines_of(lab2, inventory, run_id, "--until", "1h") == []
    assert lines_of(lab2, inventory, run_id, "--since", "1h") == lines_of(lab2, inventory, run_id)

    folded = ok(orch(lab2, "logs", "--fold", "-i", inventory, env=secret)).stdout.splitlines()
    assert [line.split(" ", 1)[0] for line in folded if "step:1" in line] == ["[0-3]"]
    assert any("step:1 loss:3.0..3.3 token=***" in line for line in folded)
    assert any(line.startswith("[0,2-3]") and "the others" in line for line in folded)
    assert any(line.startswith("[1]") and "only I" in line for line in folded)

    folder = tmp_path / "fetched"
    said = ok(orch(lab2, "logs", "-o", folder, "-i", inventory, env=secret)).stderr
    assert str(folder / "merged.log") in said
    rank = (folder / "attempt-1" / "rank-03.stdout.log").read_text()
    assert rank == "starting\n" + "".join(f"step:{step} loss:3.3 token=***\n" for step in range(3))
    merged = (folder / "merged.log").read_text()
    assert merged.count("token=***") == 12 and "horse" not in merged and "\x1b" not in merged
    ok(orch(lab2, "logs", "--fold", "--json", "-i", inventory), 2)
    ok(orch(lab2, "logs", "--grep", "(", "-i", inventory), 2)


POUR = """
import sys
for number in range(400_000):
    sys.stdout.write(f"line {number} {'x' * 80}\\n")
"""


def test_a_terminal_that_stands_still_holds_up_nothing(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    with attached(lab2, inventory, "--name", "pour", "--", script(lab2, POUR)) as up:  # nobody reads its stdout
        wait_until(lambda: any(run["name"] == "pour" for run in runs(lab2, inventory).values()), 60, "the run is known")
        run_id = next(iter(runs(lab2, inventory)))
        wait_for_state(lab2, inventory, run_id, "succeeded", 120)
        assert up.poll() is None  # it waits for its terminal; the run did not
    for rank in ("0", "1"):
        lines = lines_of(lab2, inventory, run_id, "--rank", rank, "--grep", r"9999\b")
        assert [line["text"].split()[1] for line in lines] == [str(number) for number in range(9999, 400_000, 10_000)]
