"""`restart`, `describe` and `attach`, over SSH."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from typing import Any

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, code, lines_of, ok, orch, runs, script, start, wait_for_state

RESUMES = """
import os, signal, time
path = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "saves")
saves = int(open(path).read()) if os.path.exists(path) else 0
def save(*_):
    open(path, "w").write(str(saves + 1))
    os.makedirs("beside", exist_ok=True)
    open("beside/last.pt", "w").write(str(saves + 1))
    print("saved", saves + 1, flush=True)
signal.signal(signal.SIGUSR1, save)
beside = os.path.exists("beside/last.pt")
print("begins:%d:%s:%s" % (saves, os.environ["COLOUR"], "with" if beside else "without"), flush=True)
time.sleep(1e6)
"""


@pytest.mark.timeout(240)
def test_a_restarted_run_continues_with_its_options_and_describe_shows_it(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 2}, ssh={"connect_timeout": 3})
    first = start(lab2, inventory, "--name", "job", "-e", "COLOUR=blue", "--", script(lab2, RESUMES))
    wait_until(lambda: len(lines_of(lab2, inventory, first, "--grep", "begins")) == 2, 60, "both ranks have begun")
    inventory.write_text(inventory.read_text() + "\n# a comment\n")
    ok(orch(lab2, "restart", "job", "--set", "run.graze=3", "-i", inventory), 2)
    ok(orch(lab2, "restart", "job", "--hosts", "node-[1-7]", "-i", inventory), 2)
    script(lab2, RESUMES + "\nif:\n")  # it does not compile any more
    broken = ok(orch(lab2, "restart", "job", "-d", "-i", inventory), 3).stderr
    assert "train.py line" in broken and "nothing was started" not in broken
    (code(lab2) / "train.py").unlink()
    ok(orch(lab2, "restart", "job", "-d", "-i", inventory), 2)
    script(lab2, RESUMES)
    lab2.hosts[1].cut("ssh")
    away = ok(orch(lab2, "restart", "job", "-d", "-i", inventory), 4).stderr
    assert first in away and "--hosts '!node-1'" in away
    lab2.hosts[1].heal()
    assert runs(lab2, inventory)[first]["state"] == "running"
    again = ok(orch(lab2, "restart", "job", "-d", "--set", "run.max_restarts=3", "-i", inventory))
    assert "has changed since" in again.stderr
    assert again.stderr.count("beside/last.pt") == 1  # both hosts in one line, and no warning that it is lost
    second = again.stdout.split()[0]
    assert runs(lab2, inventory)[first]["state"] == "stopped"
    wait_until(
        lambda: (
            [line["text"] for line in lines_of(lab2, inventory, second, "--grep", "begins")]
            == ["begins:1:blue:with"] * 2
        ),
        60,
        "both ranks continue",
    )
    page = json.loads(ok(orch(lab2, "describe", "job", "-i", inventory, "--json")).stdout)
    assert (page["run_id"], page["state"], page["attempt"], page["max_restarts"]) == (second, "running", 1, 3)
    assert [page["ranks"][f"node-{number}"] for number in (0, 1)] == [[0, 1], [1, 1]]
    for host in lab2.hosts:
        host.sh(
            f"test -d {page['files'][host.name]['record']}/log && test -f {page['files'][host.name]['outputs']}/saves"
        )
    shown = ok(orch(lab2, "describe", "job", "-i", inventory)).stdout
    assert "train.py" in shown and "node-1" in shown

    follower = lab2.popen(
        ["ddp-orch", "attach", "job", "-i", str(inventory)],
        cwd=code(lab2),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert follower.stdout is not None
    assert any("begins" in line for line in follower.stdout)
    follower.send_signal(signal.SIGINT)
    assert "the run continues" in follower.communicate(timeout=20)[1]
    other = inventory.with_name("other.yaml")
    other.write_text(inventory.read_text())
    again = ok(orch(lab2, "restart", "job", "-d", "-i", other))
    assert "other.yaml" in again.stderr and "has changed since" not in again.stderr
    assert runs(lab2, inventory)[second]["state"] == "stopped"
    third = again.stdout.split()[0]
    assert json.loads(ok(orch(lab2, "describe", third, "-i", other, "--json")).stdout)["inventory"] == str(other)
    ok(orch(lab2, "kill", third, "-i", inventory))
    wait_for_state(lab2, inventory, third, "killed")
    words = ("--name", "job", "-e", "COLOUR=red", "--", script(lab2, RESUMES))
    (warned,) = (line for line in ok(orch(lab2, "up", inventory, "-d", *words)).stderr.splitlines() if third in line)
    assert "beside/last.pt" in warned and f"ddp-orch restart {third}" in warned
    ok(orch(lab2, "kill", "--all", "--grace", "0", "-i", inventory))
    assert_clean(lab2)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_what_a_restart_sets_overrides_the_variables_of_up(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1})
    (code(lab2) / "my.env").write_text("COLOUR=blue\n")
    run_id = start(lab2, inventory, "--name", "job", "--env-file", "my.env", "--", script(lab2, RESUMES))
    setting = ("--set", "run.env.COLOUR=red")
    for words, colour in ((setting, "red"), (setting, "red"), (("-e", "COLOUR=green"), "green")):
        again = ok(orch(lab2, "restart", "job", "-d", *words, "-i", inventory))
        assert again.stderr.count(colour) == 1  # in the line with the command
        run_id = again.stdout.split()[0]
        wait_until(lambda: len(lines_of(lab2, inventory, run_id, "--grep", "begins")) == 2, 60, "both begin")  # noqa: B023
        assert all(f":{colour}:" in line["text"] for line in lines_of(lab2, inventory, run_id, "--grep", "begins"))
    refused = ok(orch(lab2, "restart", "job", "-d", "--set", "run.env={COLOUR: red}", "-i", inventory), 2).stderr
    assert "-e COLOUR=red" in refused and runs(lab2, inventory)[run_id]["state"] == "running"
    ok(orch(lab2, "kill", run_id, "--grace", "0", "-i", inventory))
    assert_clean(lab2)


@pytest.mark.timeout(120)
def test_a_run_of_another_machine_cannot_be_restarted_and_keeps_running(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1})
    run_id = start(lab2, inventory, "-e", "COLOUR=blue", "--", script(lab2, RESUMES))
    refused = ok(orch(lab2, "restart", run_id, "-i", inventory, env={"XDG_STATE_HOME": "/nonexistent"}), 2)
    assert "not known here" in refused.stderr
    assert runs(lab2, inventory)[run_id]["state"] == "running"
    ok(orch(lab2, "kill", run_id, "-i", inventory))


SAVES_ON_RANK_0 = """
import os, sys, time
if os.path.exists("last.pt"):
    print("resumed", flush=True)
if os.environ["RANK"] == "0":
    open("last.pt", "w").close()
print("begins", flush=True)
time.sleep(1e6)
"""


@pytest.mark.timeout(120)
def test_a_restart_tells_which_hosts_lack_a_snapshot_beside_the_code(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1, "resume": "head"})
    first = start(lab2, inventory, "--name", "job", "--", script(lab2, SAVES_ON_RANK_0))
    wait_until(lambda: len(lines_of(lab2, inventory, first, "--grep", "begins")) == 2, 60, "both ranks have begun")
    again = ok(orch(lab2, "restart", "job", "-d", "-i", inventory))
    (warned,) = (line for line in again.stderr.splitlines() if "last.pt of node-0" in line)
    assert "node-1" in warned and "DDP_ORCH_OUTPUT_DIR" in warned
    second = again.stdout.split()[0]

    def told() -> list[str]:
        return [line["host"] for line in lines_of(lab2, inventory, second, "--grep", f"last.pt of run {first} beside")]

    wait_until(lambda: told() == ["node-0"], 30, "the head says so too")
    ok(orch(lab2, "kill", second, "--grace", "0", "-i", inventory))
    assert_clean(lab2)


def test_a_restart_without_a_host_that_is_off_is_advised_as_a_restart(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1})
    first = start(lab2, inventory, "--name", "job", "-e", "COLOUR=blue", "--", script(lab2, RESUMES))
    ok(orch(lab2, "kill", first, "--grace", "0", "-i", inventory))
    lab2.hosts[1].sshd_stop()
    refused = ok(orch(lab2, "restart", "job", "-d", "--set", "run.max_restarts=3", "-i", inventory), 4).stderr
    lab2.hosts[1].sshd_start()
    advised = f"run: ddp-orch restart {first} --detach --hosts '!node-1' --set run.max_restarts=3 -i {inventory}"
    assert advised in refused
    assert_clean(lab2)


BEGINS_LATE = """
import time
time.sleep(1e6)
"""


@pytest.mark.timeout(120)
def test_a_run_whose_ranks_have_just_begun_is_restarted_at_once(lab2: Lab) -> None:
    """Nobody has looked yet whether they handle the signal, and they do not."""
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1})
    first = start(lab2, inventory, "--name", "job", "--", script(lab2, BEGINS_LATE))
    again = ok(orch(lab2, "restart", "job", "-d", "-i", inventory, timeout=60)).stdout.split()[0]
    assert runs(lab2, inventory)[first]["state"] == "stopped"
    ok(orch(lab2, "kill", again, "-i", inventory))
    assert_clean(lab2)


@pytest.mark.timeout(180)
def test_a_run_whose_head_has_just_lost_its_power_is_restarted_without_it(lab2: Lab) -> None:
    """The others do not know yet that it is lost, and nobody else can decide to stop the run."""
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1, "max_restarts": 1, "lease": 4})
    first = start(lab2, inventory, "--name", "job", "--", script(lab2, BEGINS_LATE))
    wait_for_state(lab2, inventory, first, "running")
    lab2.hosts[0].crash()
    restart = ("restart", "job", "-d", "--hosts", "!node-0", "-i", inventory)
    again = ok(orch(lab2, *restart, timeout=90)).stdout.split()[0]
    ok(orch(lab2, "kill", again, "-i", inventory, "--hosts", "node-1"))


@pytest.mark.timeout(120)
def test_a_host_that_was_left_out_may_leave_the_inventory_before_the_next_restart(lab2: Lab) -> None:
    def restart(*options: str, code: int = 0) -> tuple[str, set[str]]:
        done = ok(orch(lab2, "restart", "job", "-d", "-i", inventory, *options), code)
        newest = max(runs(lab2, inventory).values(), key=lambda run: str(run["started_at"]))
        return done.stderr, {node["host"] for node in newest["nodes"]}

    run = {"launcher": "direct", "grace": 1}
    inventory = lab2.inventory(run=run)
    start(lab2, inventory, "--name", "job", "--", script(lab2, BEGINS_LATE))
    assert restart("--hosts", "!node-1")[1] == {"node-0"}
    hosts = [{"name": "node-0", "address": lab2.hosts[0].address}, {"name": "new", "address": lab2.hosts[1].address}]
    lab2.inventory(run=run, hosts=hosts)
    said, used = restart()
    assert used == {"node-0", "new"} and "!node-1" in said, said
    said, used = restart()
    assert used == {"node-0", "new"} and "--hosts" not in said, said
    restart("--hosts", "node-0,new")
    lab2.inventory(run=run)
    refused, _ = restart(code=2)
    assert f"--hosts '*' -i {inventory}" in refused, refused
    ok(orch(lab2, "kill", "--all", "-i", inventory, "--grace", "0"))


@pytest.mark.timeout(120)
def test_a_run_that_was_queued_is_not_stopped_for_one_whose_host_is_away(lab3: Lab) -> None:
    inventory = lab3.inventory(run={"launcher": "direct", "grace": 1}, ssh={"connect_timeout": 3})
    queued = ("--queue", "--hosts", "node-[0-1]", "--name", "job", "--", script(lab3, BEGINS_LATE))
    first = start(lab3, inventory, *queued)
    lab3.hosts[2].crash()
    ok(orch(lab3, "restart", "job", "-d", "--hosts", "node-[0-2]", "-i", inventory), 4)
    listed = json.loads(orch(lab3, "ps", "--json", "-i", inventory).stdout)
    assert [(run["run_id"], run["state"]) for run in listed] == [(first, "running")]
    ok(orch(lab3, "kill", first, "-i", inventory, "--hosts", "node-[0-1]", "--grace", "0"))


@pytest.mark.timeout(180)
def test_a_run_of_any_two_hosts_that_lost_one_moves_to_a_free_one_as_all_say(lab3: Lab) -> None:
    def runs_here() -> dict[str, Any]:
        """As the hosts say that answer."""
        return {run["run_id"]: run for run in json.loads(orch(lab3, "ps", "--all", "--json", inventory).stdout)}

    run = {"launcher": "direct", "grace": 1, "max_restarts": 1, "lease": 4}
    inventory = lab3.inventory(run=run, ssh={"connect_timeout": 3})
    words = ("torchrun", "--nnodes", "2", script(lab3, BEGINS_LATE))
    any_two = ("--hosts", "any 2 of [node-1, node-2, node-0]", "--name", "job", "--", *words)
    first = start(lab3, inventory, *any_two)
    wait_for_state(lab3, inventory, first, "running")
    used = [node["host"] for node in runs(lab3, inventory)[first]["nodes"]]
    next(host for host in lab3.hosts if host.name == used[1]).crash()
    wait_until(lambda: runs_here()[first]["state"] == "waiting", 60, "it waits")
    command = f"ddp-orch restart job -i {inventory}"
    for words in (("ps",), ("describe", "-i"), ("diagnose", "-i")):
        shown = orch(lab3, *words, inventory)
        assert command in " ".join((shown.stdout + shown.stderr).split()), (words, shown)
    free = next(host for host in lab3.hosts if host.name not in used)
    free.crash()
    few = ok(orch(lab3, "restart", "job", "-d", "-i", inventory), 4).stderr
    assert "not stopped" in few and runs_here()[first]["state"] == "waiting", few
    free.boot()
    again = ok(orch(lab3, "restart", "job", "-d", "-i", inventory, timeout=90)).stdout.split()[0]
    now = {node["host"] for node in runs_here()[again]["nodes"]}
    assert now == {host.name for host in lab3.hosts} - {used[1]}
    ok(orch(lab3, "kill", again, "-i", inventory, "--hosts", ",".join(now), "--grace", "0"))


@pytest.mark.timeout(180)
def test_a_run_of_any_two_hosts_that_lost_its_head_is_told_what_is_out_of_reach_before_it_ends(lab3: Lab) -> None:
    run = {"launcher": "direct", "grace": 1, "max_restarts": 1, "lease": 4, "resume": "head"}
    inventory = lab3.inventory(run=run, ssh={"connect_timeout": 3})
    words = ("--hosts", "any 2 of [node-0, node-1, node-2]", "--name", "job", "--", script(lab3, BEGINS_LATE))
    first = start(lab3, inventory, *words)
    wait_for_state(lab3, inventory, first, "running")
    lab3.hosts[0].crash()
    said = ok(orch(lab3, "restart", "job", "-d", "-i", inventory, timeout=90))
    warned, stopped = said.stderr.find("rank 0 ran last"), said.stderr.find("- stopping run")
    assert 0 <= warned < stopped, said.stderr
    ok(orch(lab3, "kill", said.stdout.split()[0], "-i", inventory, "--hosts", "node-[1-2]", "--grace", "0"))


SAVES_LATE = """
import os, signal, time
def save(*_):
    print("saving", flush=True)
    while not os.path.exists(os.path.expanduser("~/may-end")):
        time.sleep(0.1)
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
print("begins", flush=True)
time.sleep(1e6)
"""


@pytest.mark.timeout(180)
def test_a_restart_that_lost_a_host_on_the_way_names_no_command_that_needs_it(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1, "lease": 4}, ssh={"connect_timeout": 3})
    first = start(lab2, inventory, "--name", "job", "--", script(lab2, SAVES_LATE))
    wait_until(lambda: len(lines_of(lab2, inventory, first, "--grep", "begins")) == 2, 60, "both ranks have begun")
    command = ["ddp-orch", "restart", "job", "-d", "-i", str(inventory)]
    with lab2.popen(command, cwd=code(lab2), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as restart:
        wait_until(lambda: len(lines_of(lab2, inventory, first, "--grep", "saving")) == 2, 60, "both ranks save")
        lab2.hosts[1].crash()
        ok(lab2.hosts[0].run(["touch", "may-end"]))
        _, said = restart.communicate(timeout=90)
    assert restart.returncode == 4, said
    commands = re.findall(r"ddp-orch restart .*", said)
    assert commands and all("'!node-1'" in command for command in commands), said


RANK_0_SAVES_IN_OUTPUTS = """
import os, signal, time
path = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "saves")
saves = int(open(path).read()) if os.path.exists(path) else 0
def save(*_):
    if os.environ["RANK"] == "0":
        open(path, "w").write(str(saves + 1))
        print("saved", flush=True)
signal.signal(signal.SIGUSR1, save)
print("begins", saves, flush=True)
time.sleep(1e6)
"""


@pytest.mark.timeout(240)
def test_a_run_that_leaves_its_head_takes_what_rank_0_saved_there_with_it(lab3: Lab) -> None:
    def begun(run_id: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in lines_of(lab3, inventory, run_id, "--grep", "begins"):
            found.setdefault(line["host"], []).append(line["text"])
        return found

    def roles(run_id: str) -> dict[str, str]:
        return {node["host"]: node["role"] for node in runs(lab3, inventory)[run_id]["nodes"]}

    inventory = lab3.inventory(run={"launcher": "direct", "grace": 1, "resume": "head"})
    first = start(
        lab3, inventory, "--hosts", "node-[0-1]", "--name", "job", "--", script(lab3, RANK_0_SAVES_IN_OUTPUTS)
    )
    wait_until(lambda: len(begun(first)) == 2, 60, "both ranks have begun")
    said = ok(orch(lab3, "restart", "job", "-d", "--hosts", "node-[1-2]", "-i", inventory))
    again = said.stdout.split()[0]
    wait_until(lambda: len(begun(again)) == 2, 60, "both ranks have begun")
    assert begun(again) == {"node-1": ["begins 1"], "node-2": ["begins 1"]}
    wait_until(lambda: roles(again).get("node-0") == "left", 30, "node-0 has left")
    wait_until(lambda: "ddp-guard" not in lab3.hosts[0].sh("cat /proc/[0-9]*/comm").stdout, 30, "node-0 is free")
    assert "not take part" not in said.stderr, said.stderr
    # to use the old head again, or the free host in place of another, the commands name it
    back = ok(orch(lab3, "add", again, "node-0", "-i", inventory), 2).stderr
    assert f"ddp-orch restart {again} --hosts" not in back and "restart --hosts 'node-[0-2]' job" in back, back
    refused = ok(orch(lab3, "drain", again, "node-2", "-i", inventory), 2).stderr
    assert "restart --hosts 'node-[0-1]' job" in refused, refused
    # the run has ended, and its head is left out again
    ok(orch(lab3, "kill", again, "-i", inventory))
    last = ok(orch(lab3, "restart", again, "-d", "--hosts", "node-[0,2]", "-i", inventory)).stdout.split()[0]
    wait_until(lambda: len(begun(last)) == 2, 60, "both ranks have begun")
    assert begun(last) == {"node-0": ["begins 1"], "node-2": ["begins 1"]}
    ok(orch(lab3, "kill", last, "-i", inventory))


LISTENS = "import socket, time; s = socket.create_server(('', 29500)); print('up', flush=True); time.sleep(600)"


@pytest.mark.timeout(180)
def test_a_run_is_not_stopped_for_one_that_cannot_start_or_the_way_back_is_named(lab2: Lab) -> None:
    first = start(
        lab2, lab2.inventory(run={"launcher": "direct", "grace": 1}), "--name", "job", "--", script(lab2, BEGINS_LATE)
    )
    known = {"user": "ann", "python": lab2.python}
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1}, defaults={**known, "interface": "eth7"})
    refused = ok(orch(lab2, "restart", "job", "-d", "-i", inventory), 3).stderr
    assert "was not stopped" in refused and runs(lab2, inventory)[first]["state"] == "running"
    # the old run itself might have had the port
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1, "rdzv": {"port": 29500}})
    with lab2.hosts[0].popen([lab2.python, "-c", LISTENS], "bob", stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "up\n"
        failed = ok(orch(lab2, "restart", "job", "-d", "-i", inventory), 5).stderr
        listener.kill()
    assert f"ddp-orch restart {first}" in failed and runs(lab2, inventory)[first]["state"] == "stopped"


@pytest.mark.timeout(240)
def test_a_run_is_not_stopped_while_a_host_that_was_cut_off_still_has_an_older_one(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1, "max_restarts": 1}, ssh={"connect_timeout": 3})
    restart = ("restart", "job", "-d", "-i", inventory)
    older = start(lab2, inventory, "--name", "job", "--", script(lab2, BEGINS_LATE))
    lab2.hosts[1].cut()
    newer = ok(orch(lab2, *restart, "--hosts", "node-0")).stdout.split()[0]
    lab2.hosts[1].heal()
    refused = ok(orch(lab2, *restart, "--hosts", "node-[0-1]"), 5).stderr
    assert f"ddp-orch kill {older}" in refused and runs(lab2, inventory)[newer]["state"] == "running"
    with lab2.popen(
        ["ddp-orch", *map(str, restart), "--hosts", "node-0"], cwd=code(lab2), stderr=subprocess.PIPE
    ) as interrupted:
        assert interrupted.stderr is not None
        said = ""
        while "stopping run" not in said:
            said += interrupted.stderr.readline()
        interrupted.send_signal(signal.SIGINT)
        said += interrupted.stderr.read()
    assert f"ddp-orch restart {newer} " in said, said
    ok(orch(lab2, "kill", older, "-i", inventory))
    ok(orch(lab2, *restart, "--hosts", "node-[0-1]"))
    ok(orch(lab2, "kill", "--all", "-i", inventory))


SAVES_OUTPUTS_ON_RANK_0 = """
import os, time
path = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "ckpt.pt")
print("begins", "with" if os.path.exists(path) else "without", flush=True)
if os.environ["RANK"] == "0":
    open(path, "w").close()
    print("saved", flush=True)
time.sleep(1e6)
"""


@pytest.mark.timeout(240)
def test_a_restart_without_the_lost_head_says_that_its_snapshot_is_out_of_reach(lab3: Lab) -> None:
    run = {"launcher": "direct", "grace": 1, "resume": "head", "nnodes": "1:2", "max_restarts": 3, "lease": 4}
    inventory = lab3.inventory(run=run, ssh={"connect_timeout": 3})
    on_two = ("--name", "job", "--hosts", "node-0,node-1")
    first = start(lab3, inventory, *on_two, "--", script(lab3, SAVES_OUTPUTS_ON_RANK_0))
    wait_until(lambda: lines_of(lab3, inventory, first, "--grep", "saved"), 60, "rank 0 has saved")
    lab3.hosts[0].crash()

    def said(*argv: str) -> str:
        return orch(lab3, *argv, "-i", inventory).stdout  # the exit code is 4: one host is off

    wait_until(lambda: '"state": "waiting"' in said("ps", "--json"), 60, "node-1 waits")
    refused = ok(orch(lab3, "restart", "job", "-d", "-i", inventory), 4).stderr
    lost = "node-0, where rank 0 ran"
    assert lost in refused and "without a snapshot" in refused and refused.count("until ") == 1
    again = ok(orch(lab3, "restart", "job", "-d", "--hosts", "!node-0", "-i", inventory))
    assert again.stderr.count(lost) == 1 and f"{first} is waiting for node-0" in again.stderr
    assert again.stderr.index(lost) < again.stderr.index(f"stopping run {first}")
    second = again.stdout.split()[0]
    wait_until(lambda: said("logs", second).count("begins without") == 2, 60, "both ranks begin")
    wait_until(lambda: lost in said("logs", second), 30, "the log says it")
    assert lost in said("events", second)
    lab3.hosts[0].boot()
    ok(orch(lab3, "kill", second, "--grace", "0", "-i", inventory))
    for hosts, is_lost in (("node-0,node-1", False), ("node-2", True)):  # node-2 knows of rank 0 on node-1
        begun = ok(orch(lab3, "up", inventory, "-d", "--name", "job", "--hosts", hosts, "--", "train.py"))
        assert ("node-1, where rank 0 ran" in begun.stderr) == is_lost
        ok(orch(lab3, "kill", begun.stdout.split()[0], "--grace", "0", "-i", inventory))
    assert_clean(lab3)


SAVES_OVER_WHAT_WAS_SENT = """
import os, time
epoch = int(open("ckpt/last.pt").read() or 0) if os.path.exists("ckpt/last.pt") else 0
print("begins:%d" % epoch, flush=True)
os.makedirs("ckpt", exist_ok=True)
open("ckpt/last.pt", "w").write(str(epoch + 1))
print("written", flush=True)
time.sleep(1e6)
"""


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_restart_continues_from_a_snapshot_that_the_run_wrote_over_the_one_that_was_sent(lab2: Lab) -> None:
    """Fetched once and put into the code, or deleted there since: unless the user has changed it, the run's counts."""
    inventory = lab2.inventory(run={"launcher": "direct", "grace": 1})
    words = ("--name", "job", "--", script(lab2, SAVES_OVER_WHAT_WAS_SENT))
    mine = code(lab2) / "ckpt" / "last.pt"
    mine.parent.mkdir()
    mine.write_text("3")

    def begins(run: str) -> list[str]:
        wait_until(lambda: len(lines_of(lab2, inventory, run, "--grep", "written")) == 2, 60, "both have saved")
        return [line["text"] for line in lines_of(lab2, inventory, run, "--grep", "begins")]

    first = start(lab2, inventory, *words)
    assert begins(first) == ["begins:3"] * 2
    second = ok(orch(lab2, "restart", "job", "-d", "-i", inventory))
    assert begins(second.stdout.split()[0]) == ["begins:4"] * 2 and "warning" not in second.stderr
    mine.unlink()
    third = ok(orch(lab2, "restart", "job", "-d", "-i", inventory))
    assert begins(third.stdout.split()[0]) == ["begins:5"] * 2 and "warning" not in third.stderr
    mine.write_text("20")
    fourth = ok(orch(lab2, "restart", "job", "-d", "-i", inventory))
    (warned,) = (line for line in fourth.stderr.splitlines() if "warning" in line)
    assert "last.pt" in warned and f"ddp-orch fetch {third.stdout.split()[0]}" in warned
    assert begins(fourth.stdout.split()[0]) == ["begins:20"] * 2
    ok(orch(lab2, "kill", "job", "--grace", "0", "-i", inventory))
    mine.write_text("21")  # as the newest run has it
    fifth = ok(orch(lab2, "up", inventory, "-d", *words))
    assert begins(fifth.stdout.split()[0]) == ["begins:21"] * 2 and "warning" not in fifth.stderr
    ok(orch(lab2, "kill", "--all", "--grace", "0", "-i", inventory))
    assert_clean(lab2)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_run_of_which_only_spares_are_left_starts_again_on_them_as_ps_says(lab4: Lab) -> None:
    hosts = [
        {"name": host.name, "address": host.address, "spare": number > 1} for number, host in enumerate(lab4.hosts)
    ]
    run = {"launcher": "direct", "grace": 1, "nnodes": "2:3", "max_restarts": 3, "lease": 3}
    inventory = lab4.inventory(hosts=hosts, run=run, ssh={"connect_timeout": 3})
    first = start(lab4, inventory, "--name", "job", "--", script(lab4, BEGINS_LATE))
    wait_until(lambda: runs(lab4, inventory)[first]["state"] == "running", 30, "it runs")
    for host in lab4.hosts[:2]:
        host.crash()
    advised = re.compile(r"ddp-orch (restart --hosts '.*?' job)")

    def advice() -> list[str]:
        shown = orch(lab4, "ps", "-i", inventory)
        return advised.findall(shown.stdout + shown.stderr)

    wait_until(advice, 60, "the way out is named")
    again = ok(orch(lab4, *shlex.split(advice()[0]), "-d", "-i", inventory, timeout=100)).stdout.split()[0]

    def shown() -> dict[str, Any]:
        listed = json.loads(orch(lab4, "ps", "-i", inventory, "--json").stdout)
        return {run["run_id"]: run for run in listed}[again]  # type: ignore[no-any-return]

    wait_until(lambda: shown()["state"] == "running", 30, "the new one runs")
    assert {node["host"]: node["role"] for node in shown()["nodes"]} == {"node-2": "head", "node-3": "team"}
    orch(lab4, "kill", again, "--grace", "0", "-i", inventory)
