"""One of three hosts is silent: what the others have is shown and ended at once, and the rest when it comes."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import COUNTER, assert_clean, code, counts, ok, orch, runs, script, start, wait_for_state

LATE = "yet from node-2"
FAILURE = "node-2: connect:"  # how it begins to say, once the wait for a connection is over

FAILS_ON_2 = """
import os, time
if os.environ["RANK"] == "2":
    time.sleep(1)
    raise KeyError("the_missing_column")
print("waiting for rank 2", flush=True)
time.sleep(1000)
"""


def ssh_is_silent(host: Host, signal: str = "STOP") -> None:
    """Its kernel accepts connections, and nobody answers on them, until `CONT`."""
    host.sh(f"kill -{signal} $(cat /run/sshd.pid)", "root", check=True)


@pytest.fixture
def late(lab3: Lab) -> Iterator[Host]:
    """node-2, whose sshd hangs until the test lets it go on."""
    yield lab3.hosts[2]
    with contextlib.suppress(subprocess.CalledProcessError):
        ssh_is_silent(lab3.hosts[2], "CONT")


def begin(lab: Lab, *argv: str | Path) -> subprocess.Popen[str]:
    """stdout and stderr in one, to see what was printed first."""
    return lab.popen(
        ["ddp-orch", *map(str, argv)],
        cwd=code(lab),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )


def read_to(process: subprocess.Popen[str], *wanted: str) -> list[str]:
    """Its lines, until all of `wanted` have been among them."""
    assert process.stdout is not None
    lines: list[str] = []
    left = set(wanted)
    for line in process.stdout:
        lines.append(line)
        left = {one for one in left if one not in line}
        if not left:
            return lines
    raise AssertionError(f"ended before it said {left}:\n{''.join(lines)}")


def finished_run(lab: Lab) -> tuple[Path, str]:
    inventory = lab.inventory(cluster_addresses=True, run={"launcher": "direct"})
    run_id = start(lab, inventory, "--", script(lab, COUNTER), "20", "0")
    wait_for_state(lab, inventory, run_id, "succeeded")
    return inventory, run_id


def test_logs_show_the_other_hosts_before_a_silent_one_is_given_up(lab3: Lab) -> None:
    inventory, _ = finished_run(lab3)
    lab3.hosts[2].cut("ssh")
    shown = begin(lab3, "logs", "--json", "-i", inventory)
    before = read_to(shown, FAILURE)
    assert shown.wait(60) == 4
    assert any(LATE in line for line in before)
    lines = [json.loads(line) for line in before if line.startswith("{")]
    assert counts(lines) == {0: list(range(20)), 1: list(range(20))}
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


def test_lines_of_a_host_that_answers_late_follow_those_of_the_others(lab3: Lab, late: Host) -> None:
    inventory, run_id = finished_run(lab3)
    ssh_is_silent(late)
    shown = begin(lab3, "logs", run_id, "--json", "-i", inventory)
    printed = read_to(shown, '"rank 0 count 19"', '"rank 1 count 19"')
    ssh_is_silent(late, "CONT")
    assert shown.stdout is not None
    printed += shown.stdout.readlines()
    assert shown.wait(60) == 0, "".join(printed)
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    ranks = [line["rank"] for line in lines if line["rank"] is not None]
    assert sorted(ranks) == [0] * 20 + [1] * 20 + [2] * 20 and ranks[-20:] == [2] * 20


def test_followed_logs_begin_without_a_silent_host_and_take_it_in_when_it_answers(lab3: Lab, late: Host) -> None:
    inventory = lab3.inventory(cluster_addresses=True, run={"launcher": "direct"})
    start(lab3, inventory, "--", script(lab3, COUNTER), "100", "0.1")
    ssh_is_silent(late)
    shown = begin(lab3, "logs", "-f", "--json", "-i", inventory)
    printed = read_to(shown, '"rank 0 count', '"rank 1 count')
    ssh_is_silent(late, "CONT")
    assert shown.stdout is not None
    printed += shown.stdout.readlines()
    assert shown.wait(60) == 0, "".join(printed)
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert counts(lines) == {rank: list(range(100)) for rank in range(3)}


def test_events_and_describe_do_not_wait_for_a_silent_host_that_is_left_out(lab3: Lab, late: Host) -> None:
    inventory, run_id = finished_run(lab3)
    ssh_is_silent(late)
    for command in ("events", "describe"):
        shown = ok(orch(lab3, command, run_id, "--hosts", "!node-2", "-i", inventory))
        assert FAILURE not in shown.stderr and "not ask" in shown.stderr, shown.stderr
        assert "succeeded" in shown.stdout.lower() or "ended" in shown.stdout, shown.stdout
    ssh_is_silent(late, "CONT")
    shown = ok(orch(lab3, "events", run_id, "--hosts", "!node-0", "-i", inventory))
    assert re.search("node-0 was not asked", shown.stderr) and "attempt 1" in shown.stdout


def test_logs_in_files_wait_for_all_hosts_and_are_in_order(lab3: Lab, late: Host, tmp_path: Path) -> None:
    inventory, run_id = finished_run(lab3)
    ssh_is_silent(late)
    shown = begin(lab3, "logs", run_id, "-o", "files", "-i", inventory)
    read_to(shown, LATE)
    ssh_is_silent(late, "CONT")
    assert shown.wait(60) == 0
    merged = (code(lab3) / "files" / "merged.log").read_text().splitlines()
    assert sum("count" in line for line in merged) == 60
    assert [line.split()[0] for line in merged] == sorted(line.split()[0] for line in merged)


def test_diagnose_says_what_the_others_show_and_corrects_it_when_the_last_host_answers(lab3: Lab, late: Host) -> None:
    inventory = lab3.inventory(cluster_addresses=True, run={"launcher": "direct"})
    run_id = start(lab3, inventory, "--", script(lab3, FAILS_ON_2))
    wait_for_state(lab3, inventory, run_id, "failed")
    ssh_is_silent(late)
    shown = begin(lab3, "diagnose", "-i", inventory)
    first = read_to(shown, "first cause:")
    assert any(LATE in line for line in first)
    assert "high confidence" not in first[-1]
    ssh_is_silent(late, "CONT")
    assert shown.stdout is not None
    rest = "".join(shown.stdout.readlines())
    assert shown.wait(60) == 0, rest
    assert re.search(r"\bnode-2 .*\bdiagnosis:\n(.*\n)*.*\bscript-exception\b", rest)
    lab3.hosts[2].cut("ssh")
    document = ok(orch(lab3, "diagnose", "--json", "-i", inventory), 4)
    (finding, *_) = json.loads(document.stdout)["findings"]
    assert finding["confidence"] != "high"
    before = begin(lab3, "diagnose", "-i", inventory)
    assert any("first cause:" in line for line in read_to(before, FAILURE))
    assert before.stdout is not None
    assert "first cause:" not in "".join(before.stdout.readlines())  # nothing new, so nothing again
    assert before.wait(60) == 4


def test_bare_kill_ends_no_older_run_while_a_silent_host_may_have_a_newer_one(lab3: Lab, late: Host) -> None:
    inventory = lab3.inventory(cluster_addresses=True, run={"launcher": "direct"}, ssh={"connect_timeout": 8})
    name = script(lab3, COUNTER)
    older = start(lab3, inventory, "--hosts", "node-[0-1]", "--", name, "10000", "0.1")
    newer = start(lab3, inventory, "--hosts", "node-2", "--", name, "10000", "0.1")
    lab3.hosts[2].cut("ssh")
    given_up = ok(orch(lab3, "kill", "-i", inventory, "--grace", "1"), 4)
    assert re.search(rf"\bnode-2 .*\bddp-orch kill {older} -i", given_up.stderr)
    assert lab3.marked(older) and lab3.marked(newer)
    lab3.hosts[2].heal()
    ssh_is_silent(late)
    killing = begin(lab3, "kill", "-i", inventory, "--grace", "1")
    read_to(killing, "node-2 may have a newer run")
    ssh_is_silent(late, "CONT")
    assert killing.stdout is not None
    said = killing.stdout.read()
    assert killing.wait(60) == 0, said
    assert f"stopped {newer}" in said and not lab3.marked(newer)
    assert runs(lab3, inventory)[older]["state"] == "running"
    ok(orch(lab3, "kill", "-i", inventory, "--grace", "1"))
    assert_clean(lab3)


def test_kill_all_ends_the_runs_of_the_others_while_a_host_is_silent(lab3: Lab, late: Host) -> None:
    inventory = lab3.inventory(cluster_addresses=True, run={"launcher": "direct"})
    name = script(lab3, COUNTER)
    on_two = start(lab3, inventory, "--hosts", "node-[0-1]", "--", name, "10000", "0.1")
    on_one = start(lab3, inventory, "--hosts", "node-2", "--", name, "10000", "0.1")
    ssh_is_silent(late)
    killing = lab3.popen(
        ["ddp-orch", "kill", "--all", "--json", "--grace", "1", "-i", str(inventory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    wait_until(lambda: not lab3.marked(on_two), 15, "the run of the hosts that answered is ended")
    assert killing.poll() is None and lab3.marked(on_one)
    ssh_is_silent(late, "CONT")
    out, err = killing.communicate(timeout=60)
    assert killing.returncode == 0, err
    assert LATE in err and {one["host"] for one in json.loads(out)["killed"]} == {"node-0", "node-1", "node-2"}
    assert_clean(lab3)


def test_fetch_claims_nothing_of_a_host_that_it_could_not_ask(lab3: Lab) -> None:
    inventory, run_id = finished_run(lab3)
    lab3.hosts[2].cut()
    done = orch(lab3, "fetch", run_id, "-i", inventory)
    assert done.returncode == 4 and FAILURE in done.stderr
    assert re.search(rf"^node-\[0-1\]: .*\b{run_id}\b", done.stderr, re.M), done.stderr
    assert "node-2" in done.stderr.splitlines()[-1]
