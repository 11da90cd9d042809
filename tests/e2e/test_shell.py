"""`shell`: a terminal or a command in the environment of a run, on a host of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.lab import Lab

from .driver import assert_clean, code, ok, orch, runs, script, start

WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(300)\n"


class Person:
    """Somebody at a terminal in which a program runs."""

    def __init__(self, handle: int, process: subprocess.Popen[str]) -> None:
        self._handle, self.process = handle, process
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self.process.pid, 28)  # the terminal is not the controlling one here

    def sees(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """Wait for a text after the last one."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            assert select.select([self._handle], [], [], max(0, deadline - time.monotonic()))[0], self.seen
            with contextlib.suppress(OSError):
                self.seen += os.read(self._handle, 1 << 16).decode(errors="replace")
        self.seen = self.seen[match.end() :]
        return match


@contextlib.contextmanager
def person(lab: Lab, *argv: str, program: str = "ddp-orch") -> Iterator[Person]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 101, 0, 0))
    process = lab.popen(
        [program, *argv],
        cwd=code(lab),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Person(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def run_with(lab: Lab, **keys: object) -> tuple[Path, str]:
    inventory = lab.inventory(run={"launcher": "direct", "env": {"COLOUR": "deep blue"}, **keys})
    return inventory, start(lab, inventory, "--name", "job", "--", script(lab, WAIT), env={"TOKEN": "tokentoken"})


@pytest.mark.timeout(180)
def test_a_shell_has_a_terminal_the_environment_and_the_size_of_the_window(lab2: Lab) -> None:
    inventory, run_id = run_with(lab2)
    with person(lab2, "shell", "job", "node-1", "-i", str(inventory)) as user:
        user.sees(r"\(job\) .*[$#] ")
        user.type("echo $COLOUR in $(basename $PWD) on $HOSTNAME; stty size\r")
        user.sees(r"deep blue in code on node-1\r\n31 101\r")
        user.resize(40, 132)
        user.type("until stty size | grep '40 1''32'; do sleep 0.1; done\r")  # what is typed may overtake the signal
        user.sees(r"40 132\r")
        # said by the process that Ctrl-C is to end: while the shell starts it, Ctrl-C may be lost
        user.type("sh -c 'echo $((40 + 2)); exec sleep 200'\r")
        user.sees(r"42\r")
        user.type("\x03")
        user.sees(r"[$#] ")  # what is typed before its prompt may be lost with the signal
        user.type("exit 7\r")
        assert user.process.wait(20) == 7
    assert runs(lab2, inventory)[run_id]["state"] == "running"
    ok(orch(lab2, "kill", run_id, "-i", inventory))
    assert_clean(lab2, run_id)


@pytest.mark.timeout(180)
def test_a_shell_that_hangs_can_be_left_and_a_kill_of_the_run_leaves_it(lab2: Lab) -> None:
    inventory, run_id = run_with(lab2)
    with person(lab2, "shell", "job", "-i", str(inventory)) as user:
        user.sees(r"[$#] ")
        ok(orch(lab2, "kill", run_id, "-i", inventory))
        user.type("trap '' HUP INT; echo still $((40 + 2)); sleep 222\r")
        user.sees("still 42")
        user.type("\r~.")
        assert user.process.wait(20) == 130
        user.sees("left the shell")


@pytest.mark.timeout(180)
def test_a_command_gets_stdin_and_secrets_and_passes_its_output_and_exit_code_on(lab2: Lab) -> None:
    inventory, run_id = run_with(lab2, secrets=["TOKEN"])
    shell = ("shell", "job", "node-1", "-i", inventory, "--")
    done = orch(lab2, *shell, "cat; echo $TOKEN >&2; exit 3", input="ä\n" * 100_000)
    assert (done.returncode, done.stdout) == (3, "ä\n" * 100_000)
    assert "tokentoken" in done.stderr
    assert orch(lab2, *shell, "python", "-c", "import torch, sys; sys.exit(9)").returncode == 9
    assert ok(orch(lab2, *shell, "printf", "%s|", "a b", "$HOME")).stdout == "a b|$HOME|"
    assert orch(lab2, *shell, "kill -TERM $$").returncode == 143
    assert "no host" in ok(orch(lab2, "shell", "job", "nosuch", "-i", inventory), 2).stderr
    ok(orch(lab2, "kill", run_id, "-i", inventory))
    over = ok(orch(lab2, *shell, "echo $DDP_ORCH_RUN_NAME:$TOKEN:$RANK"))
    assert over.stdout == "job::\n"
    assert "TOKEN" in over.stderr and "has ended" in over.stderr


@pytest.mark.timeout(180)
def test_a_command_ends_when_its_controller_is_killed(lab2: Lab) -> None:
    inventory, run_id = run_with(lab2)
    process = lab2.popen(
        ["ddp-orch", "shell", "job", "-i", str(inventory), "--", "echo begun; exec sleep 987"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 40
    while "sleep 987" in lab2.hosts[0].sh("ps -eo args", "root").stdout:
        assert time.monotonic() < deadline
    ok(orch(lab2, "kill", run_id, "-i", inventory))
