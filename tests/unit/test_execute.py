"""`exec` on this machine, without SSH: what is run, what is kept of it, and what an interrupt ends."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.waiting import wait_until

from orchestrator.commands import live_output
from orchestrator.commands.exec import execute
from orchestrator.errors import OutputError, UsageError
from orchestrator.hosts import fleet as fleets
from orchestrator.hosts import host_command
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.model import parse
from orchestrator.ssh.pipe import LocalConnection

SHOW = "from orchestrator.cli import main; main()"


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: [{name: here, address: localhost, setup: ['test -e /nowhere']}]\n")
    return str(path)


@pytest.mark.parametrize("command", ["echo one; echo two", "true && echo two\necho three", "true || echo two"])
def test_nothing_of_a_command_is_run_after_a_setup_that_failed(
    inventory: str, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(inventory, (command,), None, setup=True, as_json=False) == 1
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("bash", "run-here.sh", "1"), "--set run.launcher=skypilot -- bash run-here.sh 1"),
        (("bash run-here.sh",), "--set run.launcher=skypilot -- bash run-here.sh"),
        ((sys.executable, "train-here.py"), f" -- {sys.executable} train-here.py"),
        (("true; bash run-here.sh",), "-- SCRIPT"),
        (("bash", "run-nowhere.sh"), None),
        (("bash", "-c", "exit 127", "run-here.sh"), None),
        (("ls", "/nowhere"), None),
        (("ls", "a" * 5000), None),
    ],
)
def test_a_file_that_is_here_only_is_sent_by_up(
    inventory: str,
    command: tuple[str, ...],
    advice: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run-here.sh").write_text("echo $SKYPILOT_NODE_RANK\n")
    (tmp_path / "train-here.py").write_text("")
    assert execute(inventory, command, None, setup=False, as_json=False) != 0
    shown = capfd.readouterr().err
    assert ("ddp-orch up" in shown) == (advice is not None)
    assert advice is None or advice in shown


@pytest.mark.parametrize("command", [("python", "-c", "print('it is here')"), ("python -c 'print(\"it is here\")'",)])
@pytest.mark.parametrize(("beside", "first"), [("pyvenv.cfg", True), ("conda-meta", True), ("other", False)])
def test_after_setup_a_command_finds_the_python_of_the_inventory(
    tmp_path: Path, beside: str, first: bool, command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "an env" / "bin"
    folder.mkdir(parents=True)
    (folder.parent / beside).touch()
    for name in ("python", "ls"):
        (folder / name).write_text("#!/bin/sh\necho it is here\n")
        (folder / name).chmod(0o755)
    path = tmp_path / "inventory.yaml"
    setup = ['export PATH=/usr/bin:/bin; hash -r; python() { command python "$@"; }'] if first else ["PATH=/bin"]
    path.write_text(f"hosts: [{{name: here, address: localhost, python: '{folder}/python', setup: {setup}}}]\n")
    assert execute(str(path), command, None, setup=True, as_json=False) == 0
    assert capfd.readouterr().out == "here: it is here\n"
    execute(str(path), ("ls", str(tmp_path)), None, setup=True, as_json=False)
    assert ("it is here" in capfd.readouterr().out) == first


def test_of_endless_output_only_the_beginning_is_kept(
    inventory: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_command, "MAX_OUTPUT", 1000)
    assert (
        execute(inventory, ("head -c 5000000 /dev/zero | tr '\\0' x; exit 3",), None, setup=False, as_json=False) == 3
    )
    out, err = capfd.readouterr()
    assert out == f"here: {'x' * 1000}\n"
    assert re.search(r"\bhere: 5\.0 MB\b", err)


def test_lines_are_shown_as_they_come(inventory: str, tmp_path: Path) -> None:
    command = (
        f"echo begun; echo trouble >&2; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; printf 'no newline'; exit 3"
    )
    argv = [sys.executable, "-c", SHOW, "exec", "--stream", inventory, "--", command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "here: begun\n"  # while the command runs
        assert process.stderr.readline() == "here: trouble\n"
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=20)
    assert out == "here: no newline\n" and process.returncode == 3
    assert err.count("trouble") == 0 and "exit code 3" in err


def test_a_stream_ends_the_command_when_nobody_reads_it(inventory: str, tmp_path: Path) -> None:
    command = f"echo $$ > {tmp_path}/pid; while echo again; do sleep 0.05; done"
    argv = [sys.executable, "-c", SHOW, "exec", "--stream", inventory, "--", command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "here: again\n"
        process.stdout.close()
        assert process.wait(20) == 0 and process.stderr is not None and process.stderr.read() == ""
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_ends_with_an_error_when_the_disk_of_its_output_is_full(
    inventory: str, tmp_path: Path, name: str
) -> None:
    redirect = ">&2" if name == "stderr" else ""
    command = f"echo $$ > {tmp_path}/pid; while echo again {redirect}; do sleep 0.05; done"
    argv = [sys.executable, "-c", SHOW, "exec", "--stream", inventory, "--", command]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with open("/dev/full", "w") as full, subprocess.Popen(argv, **{**streams, name: full}, text=True) as process:
        try:
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == OutputError.exit_code
    assert (out or "") == ""
    assert name == "stderr" or (err.startswith("error: ") and os.strerror(errno.ENOSPC) in err and err.count("\n") == 1)
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


def test_a_stream_is_no_json(inventory: str) -> None:
    with pytest.raises(UsageError):
        execute(inventory, ("true",), None, setup=False, as_json=True, stream=True)


def test_the_newest_line_of_a_host_is_shown_while_its_command_runs() -> None:
    amounts: list[tuple[str, str]] = []
    progress: Any = SimpleNamespace(set_amount=lambda host, amount: amounts.append((host, amount)))
    newest = live_output.NewestLine(progress)
    newest.take("here", "stdout", b"one\ntwo\r\x1b[31m 50 %\n\n")
    newest.take("here", "stderr", b"\n")
    newest.end("here")
    assert amounts == [("here", "50 %"), ("here", "")]


@pytest.fixture
def running(inventory: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = f"echo begun; echo $$ > {tmp_path}/pid; sleep 1000"
    argv = [sys.executable, "-c", SHOW, "exec", inventory, "--", command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_ctrl_c_ends_the_command(running: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20, "the command runs")
    pid = int((tmp_path / "pid").read_text())
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130 and "error: here: interrupted\n" in err
    assert not Path(f"/proc/{pid}").exists()


def test_a_fleet_that_is_closed_ends_its_commands(tmp_path: Path) -> None:
    host = parse("hosts: [{name: here, address: localhost}]", "inventory.yaml").hosts[0]
    dialer: Any = SimpleNamespace(connect=lambda _: LocalConnection(), close=lambda: None)
    fleet = fleets.Fleet(dialer, NodeProgram("", b""), 1, lambda: "")
    command = f"echo $$ > {tmp_path}/pid; sleep 1000"
    running = threading.Thread(target=lambda: fleets.each([host], lambda _: fleet.run_on(host, command), 1))
    running.start()
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20, "the command runs")
    fleet.close()
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()
    running.join(20)


def test_a_fleet_that_is_closed_ends_a_command_that_has_just_been_started(tmp_path: Path) -> None:
    host = parse("hosts: [{name: here, address: localhost}]", "inventory.yaml").hosts[0]
    started, answered = threading.Event(), threading.Event()

    class Slow(LocalConnection):
        def open(self, command: str, timeout: float) -> Any:
            pipe = super().open(command, timeout)
            started.set()
            assert answered.wait(20)
            return pipe

    dialer: Any = SimpleNamespace(connect=lambda _: Slow(), close=lambda: None)
    fleet = fleets.Fleet(dialer, NodeProgram("", b""), 1, lambda: "")
    command = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    running = threading.Thread(target=lambda: fleets.each([host], lambda _: fleet.run_on(host, command), 1))
    running.start()
    assert started.wait(20)
    closing = threading.Thread(target=fleet.close)
    closing.start()
    wait_until(lambda: fleet._interrupted or not closing.is_alive(), 20, "it looks for commands")
    answered.set()
    running.join(20)
    closing.join(20)
    assert not running.is_alive() and not closing.is_alive()
