"""`up --watch` on this machine: edits of a script, as somebody makes them who tries it out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until

from .local import command, environment

LOOP = """import os, time
print("this is version {}", flush=True)
print("steps of all versions:", os.path.exists("steps") and len(open("steps").read()), flush=True)
open("steps", "a").write("x")
while True:
    time.sleep(0.05)
    print("a line", flush=True)
"""


def orch(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The state folder is not among the code."""
    return subprocess.run(
        command(*argv),
        cwd=folder,
        env=environment(folder.parent),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    host = f"{{name: me, address: localhost, python: {sys.executable}}}"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inventory.yaml").write_text(f"hosts: [{host}]\nrun: {{launcher: direct, grace: 1}}\n")
    yield tmp_path / "code"
    orch(tmp_path / "code", "kill", "--all", "--grace", "0")


@pytest.mark.timeout(300)
def test_a_run_follows_the_edits_of_its_script(folder: Path) -> None:
    (folder / "train.py").write_text(LOOP.format(1))
    output = folder / "train.log"  # among the code, and growing
    output.write_text("")
    with output.open("a") as stream:
        process = subprocess.Popen(
            command("up", "--watch", "--skip-check", "--", "train.py"),
            cwd=folder,
            env=environment(folder.parent) | {"PYTHONUNBUFFERED": "1"},
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
        )

    def wait_for(text: str, count: int = 1) -> None:
        wait_until(lambda: output.read_text().count(text) >= count, 60, f"{text!r} in\n{output.read_text()}")

    try:
        wait_for("this is version 1")
        os.utime(folder / "train.py")
        (folder / "train.py").write_text("def broken(:")
        wait_for("train.py line 1: ")
        (folder / "train.py").write_text(LOOP.format(1))  # undone
        lines = output.read_text().count("a line")
        wait_for("a line", count=lines + 60)  # in which a change would be seen
        assert "restarting" not in output.read_text()
        (folder / "train.py").write_text(LOOP.format(2))
        wait_for("train.py changed at ")
        wait_for("this is version 2")
        (folder / "train.py").unlink()
        wait_for("train.py: no such file")
        (folder / "train.py").write_text(LOOP.format(3).partition("while")[0])
        wait_for("this is version 3")
        wait_for("steps of all versions: 2")
        wait_for("waiting for a change of the code; Ctrl-C exits", count=2)  # the first one is of the missing file
        assert output.read_text().count("restarting") == 3, output.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
    listed = orch(folder, "ps", "--all").stdout
    assert listed.count("stopped") == 1 and listed.count("succeeded") == 1, listed  # the newest of the replaced ones


def test_what_cannot_be_watched_is_refused(folder: Path) -> None:
    (folder / "train.py").write_text("")
    assert "cannot be combined" in orch(folder, "up", "--watch", "-d", "--", "train.py").stderr
    nothing = orch(folder, "up", "--watch", "--set", "run.sync=none", "--", "train.py")
    assert nothing.returncode == 2, nothing.stderr
