"""`signal` and `snapshot`, with the bundled trainer and with scripts that know of no snapshots."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.waiting import wait_until

from .local import command, environment, orch
from .terminals import SESSION, Terminal, terminal

WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(300)\n"


def inventory_in(folder: Path) -> None:
    host = f"{{name: me, address: localhost, python: {sys.executable}}}"
    (folder / "inventory.yaml").write_text(f"hosts: [{host}]\nrun: {{launcher: direct, grace: 1}}\n")


def start(folder: Path, *arguments: str, line: str) -> str:
    """The id of a detached run, once it has printed a line."""
    done = orch(folder, "up", "-d", "inventory.yaml", "--skip-check", *arguments)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[0]
    wait_until(lambda: line in orch(folder, "logs", run_id).stdout, 60.0, f"{line} is printed")
    return run_id


@pytest.mark.timeout(180)
def test_the_bundled_trainer_saves_a_snapshot_when_asked_and_continues(tmp_path: Path) -> None:
    inventory_in(tmp_path)
    run_id = start(tmp_path, "--", "--epochs", "100000", "--save-every", "1000000", line="epoch:1 step:1 ")
    done = orch(tmp_path, "snapshot", run_id, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["run_id"], answer["host"], answer["rank"]) == (run_id, "me", 0)
    assert answer["line"].startswith("saved epoch:")
    assert json.loads(orch(tmp_path, "ps", "--json").stdout)[0]["state"] == "running"
    assert orch(tmp_path, "kill", run_id).returncode == 0


@pytest.mark.timeout(180)
def test_a_script_without_a_handler_is_left_alone(tmp_path: Path) -> None:
    inventory_in(tmp_path)
    (tmp_path / "train.py").write_text(WAIT)
    run_id = start(tmp_path, "--", "train.py", line="ready")
    refused = orch(tmp_path, "snapshot", run_id)
    assert refused.returncode == 2 and "SIGUSR1" in refused.stderr and "me: rank 0" in refused.stderr, refused.stderr
    assert orch(tmp_path, "signal", run_id, "NOSUCH").returncode == 2
    assert orch(tmp_path, "signal", run_id, "USR1", "--rank", "3").returncode == 2
    assert json.loads(orch(tmp_path, "ps", "--json").stdout)[0]["state"] == "running"
    done = orch(tmp_path, "signal", run_id, "SIGUSR1", "--rank", "0", "--json")
    assert json.loads(done.stdout) == {"run_id": run_id, "signal": 10, "ranks": [0], "failed": {}}, done.stderr
    failed = orch(tmp_path, "logs", "-f", run_id)
    assert failed.returncode == 1
    diagnosis = json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)[0]
    assert diagnosis["nodes"][0]["signal"] == "SIGUSR1"
    first = json.loads(orch(tmp_path, "diagnose", run_id, "--json").stdout)["findings"][0]
    assert (first["code"], first["rank"], first["confidence"]) == ("user-interrupt", 0, "high")
    over = orch(tmp_path, "signal", run_id, "USR1")
    assert over.returncode == 2


@pytest.mark.timeout(240)
def test_a_signal_to_up_saves_a_snapshot_and_stops_the_run_which_a_second_one_resumes(tmp_path: Path) -> None:
    inventory_in(tmp_path)
    flags = ["--", "--epochs", "100000", "--save-every", "1000000"]
    up = command("up", "inventory.yaml", "--skip-check", "--name", "mine", *flags)
    for first in (True, False):
        with subprocess.Popen(
            up, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "epoch:" in line and "step:" in line and "resumed" not in line:
                    break
            process.send_signal(signal.SIGUSR1)
            rest, errors = process.communicate(timeout=90)
            assert process.returncode == 75, errors
        assert any("saved epoch:" in line for line in rest.splitlines())
        assert first or any("resumed epoch:" in line for line in lines)
    (run, _) = json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)
    assert run["state"] == "stopped"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("number", "job"),
    [(signal.SIGUSR1, {}), *((number, {"SLURM_JOB_ID": "7"}) for number in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_signal_to_up_says_that_a_script_without_a_handler_saves_nothing(
    tmp_path: Path, number: int, job: dict[str, str]
) -> None:
    inventory_in(tmp_path)
    (tmp_path / "train.py").write_text(WAIT)
    up = command("up", "inventory.yaml", "--skip-check", "--", "train.py")
    with subprocess.Popen(
        up,
        cwd=tmp_path,
        env={**environment(tmp_path), **job},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any("ready" in line for line in process.stdout)
        process.send_signal(number)
        shown, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "run.snapshot_signal" in errors
    assert "`saved`" in shown
    assert "saved a snapshot" not in errors


SAVER = """
import signal, time
done = []
signal.signal(signal.SIGUSR1, lambda *_: done.append(1))
for count in range(2000):
    print("count", count, flush=True)
    if done:
        time.sleep(2)  # a snapshot takes a while
        print("saved", count, flush=True)
        done.clear()
    time.sleep(0.05)
"""


@contextmanager
def on_terminal(folder: Path, job: Mapping[str, str], line: str) -> Iterator[Terminal]:
    """A line for bash, run on a terminal of its own, in the environment of a job."""
    env = {**environment(folder), **job, "TERM": "xterm"}

    def start(end: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*SESSION, "bash", "-c", line], cwd=folder, env=env, stdin=end, stdout=end, stderr=end)

    with terminal(start) as user:
        yield user


def up_line(*options: str) -> str:
    return shlex.join(command("up", "inventory.yaml", "--skip-check", *options, "--", "train.py"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pipe", ["", " | cat"])
def test_in_a_job_a_closed_terminal_has_the_run_saved_before_it_stops(tmp_path: Path, pipe: str) -> None:
    """Its output, and that of `cat`, cannot be written any more, while `up` waits for the snapshot."""
    inventory_in(tmp_path)
    (tmp_path / "train.py").write_text(SAVER)
    with on_terminal(tmp_path, {"SLURM_JOB_ID": "7"}, up_line() + pipe) as user:
        user.wait_for("count 5")
        user.close()

        def state() -> str:
            (run,) = json.loads(orch(tmp_path, "ps", "--all", "--json").stdout)
            return str(run["state"])

        wait_until(lambda: state() != "running", 60, "the run has ended")
    assert pipe or re.search(r"terminal\b.*\bstops", user.shown)
    assert state() == "stopped"
    assert "| saved " in (logs := orch(tmp_path, "logs").stdout), logs


@pytest.mark.timeout(120)
def test_in_a_job_a_hangup_ends_up_watch_too(tmp_path: Path) -> None:
    inventory_in(tmp_path)
    (tmp_path / "train.py").write_text(SAVER)
    with on_terminal(tmp_path, {"SLURM_JOB_ID": "7"}, f"exec {up_line('--watch')}") as user:
        user.wait_for("count 5")
        user.process.send_signal(signal.SIGHUP)
        user.wait_for("saved")
        user.wait_for(r"stopped\b.*\bSIGHUP")
        assert user.process.wait(60) == 75


@pytest.mark.timeout(120)
def test_outside_of_a_job_a_run_continues_without_its_terminal(tmp_path: Path) -> None:
    inventory_in(tmp_path)
    (tmp_path / "train.py").write_text(SAVER)
    with on_terminal(tmp_path, {}, f"exec {up_line()}") as user:
        user.wait_for("count 5")
        user.close()
        assert user.process.wait(60) == -signal.SIGHUP
    assert re.search(r"terminal\b.*\bnot stop", user.shown), user.shown
    (run,) = json.loads(orch(tmp_path, "ps", "--json").stdout)
    assert run["state"] == "running"
    assert orch(tmp_path, "kill", run["run_id"]).returncode == 0


QSTAT = """#!/bin/sh
echo '    Resource_List.walltime = 01:00:00'
echo '    resources_used.walltime = USED'
"""
SAVES = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: print("saved step:7", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


@contextmanager
def job_of_pbs(folder: Path, used: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`up` in a job that has run for `used`, with programs in the place of those of PBS. Its rank is ready."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, text in (("qstat", QSTAT.replace("USED", used)), ("qrerun", f"#!/bin/sh\necho $1 > {folder}/requeued\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "nodes").write_text("localhost\n")
    (folder / "base.yaml").write_text(f"defaults: {{python: {sys.executable}}}\nrun: {{launcher: direct, grace: 1}}\n")
    (folder / "train.py").write_text(SAVES)
    job = {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(folder / "nodes"), "PATH": f"{programs}:{os.environ['PATH']}"}
    up = command("up", "@pbs", "--with", "base.yaml", *options, "--skip-check", "--", "train.py")
    with subprocess.Popen(
        up, cwd=folder, env={**environment(folder), **job}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        stdout = process.stdout
        assert stdout is not None
        wait_until(lambda: "ready" in stdout.readline(), 120.0, "the rank is ready")
        yield process


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("used", "is_deleted"), [("00:00:10", True), ("00:59:15", False)])
def test_a_job_of_pbs_is_queued_again_at_its_limit_and_not_when_it_is_deleted(
    tmp_path: Path, used: str, is_deleted: bool
) -> None:
    with job_of_pbs(tmp_path, used, "--requeue") as up:
        if is_deleted:
            up.send_signal(signal.SIGTERM)
        lines, said = up.communicate(timeout=90)
    assert up.returncode == 75 and "saved step:7" in lines, said
    assert (tmp_path / "requeued").exists() is not is_deleted, said
    assert ("not queued again" if is_deleted else "is queued again") in said, said


@pytest.mark.timeout(300)
def test_a_job_that_runs_again_at_once_waits_for_the_run_that_it_has_left(tmp_path: Path) -> None:
    with job_of_pbs(tmp_path, "00:00:10", "--name", "job") as up:
        up.kill()
    with job_of_pbs(tmp_path, "00:00:10", "--name", "job") as again:
        again.send_signal(signal.SIGTERM)
        _, said = again.communicate(timeout=90)
    assert again.returncode == 75 and "trying again" in said, said
