"""Commands that wait for a host say so at once."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

READ_WITHIN = 8.0  # s; without the status line, nothing is printed for 20 s


@pytest.mark.parametrize(
    "arguments", [["ps", "-i"], ["exec", "-i", "FILE", "--", "true"], ["kill", "-i"], ["top", "-i"]]
)
def test_a_command_on_a_terminal_says_what_it_waits_for(arguments: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(f"hosts: [{{name: a, address: 127.0.0.1, port: {silent.getsockname()[1]}}}]\n")
        words = [str(inventory) if word == "FILE" else word for word in arguments]
        command = [sys.executable, "-m", "orchestrator.cli", *words]
        ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path)}
        process = subprocess.Popen(
            command if str(inventory) in command else [*command, str(inventory)],
            stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        try:
            deadline = time.monotonic() + READ_WITHIN
            printed = b""
            while b"host" not in printed and time.monotonic() < deadline:
                if select.select([ours], [], [], 0.1)[0]:
                    printed += os.read(ours, 4096)
            assert b"host" in printed and process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.close(ours)
