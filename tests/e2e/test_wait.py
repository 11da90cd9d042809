"""`wait` on this machine: it ends with the run, and with the exit code of the run."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until

from .local import command, environment, orch

UNTIL_FILE = """import pathlib, sys, time
print("ready", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
sys.exit(int(pathlib.Path(sys.argv[1]).read_text()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    orch(tmp_path, "kill", "--all", "--grace", "0")


def start(folder: Path, name: str, options: str = "") -> str:
    host = f"{{name: me, address: localhost, python: {sys.executable}}}"
    (folder / "inventory.yaml").write_text(f"hosts: [{host}]\nrun: {{launcher: direct, grace: 1{options}}}\n")
    (folder / "train.py").write_text(UNTIL_FILE)
    done = orch(folder, "up", "-d", "--skip-check", "--name", name, "--", "train.py", str(folder / name))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


SERVER = """import http.server, pathlib, sys, time
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def start_server(folder: Path) -> str:
    """It serves once the file `go` exists."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = f"{{name: me, address: localhost, python: {sys.executable}}}"
    row = f'{{argv: ["{{command}}"], ready: "http://127.0.0.1:{port}/"}}'
    text = f"hosts: [{host}]\nlaunchers: {{served: {row}}}\nrun: {{launcher: served, grace: 1}}\n"
    (folder / "inventory.yaml").write_text(text)
    (folder / "serve.py").write_text(SERVER)
    words = ("{python}", "serve.py", str(port), str(folder / "go"))
    done = orch(folder, "up", "-d", "--skip-check", "--", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def test_a_server_is_waited_for_until_it_answers(folder: Path) -> None:
    start_server(folder)
    early = waiting(folder, "--ready")
    assert early.stderr is not None and "server" in early.stderr.readline()
    assert waiting(folder, "--ready", "--timeout", "0.5s").wait(30) == 124
    (folder / "go").touch()
    assert early.wait(30) == 0
    assert "ready after" in early.stderr.read()
    assert waiting(folder, "--ready").wait(30) == 0  # it still is
    assert orch(folder, "kill").returncode == 0


def test_a_server_that_ends_before_it_is_ready_is_not_waited_for(folder: Path) -> None:
    run_id = start_server(folder)
    process = waiting(folder, "--ready", run_id)
    assert orch(folder, "kill", run_id, "--grace", "0").returncode == 0
    assert process.wait(30) == 130


def waiting(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("wait", *words),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("status", "code"), [("0", 0), ("7", 1)])
def test_it_ends_with_the_run_and_with_its_exit_code(folder: Path, status: str, code: int) -> None:
    run_id = start(folder, "mine")
    with waiting(folder, "mine") as process:
        assert process.stderr is not None and run_id in process.stderr.readline()
        wait_until(lambda: "ready" in orch(folder, "logs", run_id).stdout, 60.0, "the script runs")
        assert process.poll() is None
        (folder / "mine").write_text(status)
        shown, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert shown == "" and run_id in said.splitlines()[-1 - bool(code)]
    assert ("diagnose" in said.splitlines()[-1]) is bool(code)
    assert orch(folder, "wait", run_id).returncode == code  # of a run that is over


@pytest.mark.timeout(120)
def test_who_waits_is_told_of_a_restart(folder: Path) -> None:
    start(folder, "mine", ", max_restarts: 1")
    with waiting(folder, "mine") as process:
        assert process.stderr is not None and "waiting" in process.stderr.readline()
        wait_until(lambda: "ready" in orch(folder, "logs", "mine").stdout, 60.0, "the script runs")
        (folder / "mine").write_text("7")
        _, said = process.communicate(timeout=60)
    assert re.search(r"^me: restart 1 .*\nme: attempt 2 ", said, re.M), said


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_waiting_and_not_the_run(folder: Path) -> None:
    run_id = start(folder, "mine")
    with waiting(folder) as process:
        assert process.stderr is not None and run_id in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ddp-orch kill mine" in said
    late = orch(folder, "wait", "--timeout", "1s")
    assert late.returncode == 124 and run_id in late.stderr, late.stderr
    assert orch(folder, "wait", "--timeout", "soon").returncode == 2
    assert "running" in orch(folder, "ps").stdout
    assert orch(folder, "kill", run_id).returncode == 0
    assert orch(folder, "wait", run_id).returncode == 130


def test_a_run_that_does_not_exist_is_a_mistake(folder: Path) -> None:
    start(folder, "mine")
    assert orch(folder, "wait", "other").returncode == 2
    assert orch(folder, "kill").returncode == 0


@pytest.mark.timeout(120)
def test_events_lists_what_happened_in_a_failed_run(folder: Path) -> None:
    start(folder, "mine")
    (folder / "mine").write_text("7")
    assert orch(folder, "wait", "mine").returncode == 1
    shown = orch(folder, "events", "mine")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"\n.*me: .*\b7\b", shown.stdout)
    assert shown.stdout.endswith(" the run failed\n")
    listed = json.loads(orch(folder, "events", "mine", "--json").stdout)["events"]
    assert [event["what"] for event in listed] == [line.split(" s  ", 1)[1] for line in shown.stdout.splitlines()]
    for span, count in ((("--since", "1h"), len(listed)), (("--until", "1h"), 0), (("--until", listed[0]["at"]), 1)):
        part = json.loads(orch(folder, "events", "mine", "--json", *span).stdout)["events"]
        assert part == listed[:count], span
    assert orch(folder, "events", "mine", "--since", "yesterday").returncode == 2


def test_attach_starts_with_the_lines_of_a_time(folder: Path) -> None:
    start(folder, "mine")
    (folder / "mine").write_text("0")
    assert orch(folder, "wait", "mine").returncode == 0
    whole, part = (orch(folder, "attach", "mine", "--since", time) for time in ("1h", "2035-01-01T00:00:00Z"))
    assert whole.returncode == part.returncode == 0
    assert "me:agent" in whole.stdout and not part.stdout
