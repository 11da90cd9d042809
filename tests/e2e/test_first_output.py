"""Commands that wait for a host show on a terminal that they have started, about as soon as --help shows its text."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

READ_WITHIN = 8.0  # s; without the status line, nothing is printed for 20 s
SLOWER, SLACK, TRIES = 3.0, 0.3, 4  # than --help; s; other programs may take the processor meanwhile


# all that ask hosts, except `init`, which asks the user first, and `restart` of runs that were started here
COMMANDS = """\
add R a -i FILE
attach R -i FILE
bench FILE
check FILE
describe R -i FILE
diagnose R -i FILE
doctor R -i FILE
drain R a -i FILE
events R -i FILE
exec -i FILE -- true
fetch R -i FILE
gpus FILE
kill R -i FILE
logs -f R -i FILE
notify --test FILE
port-forward R 6006 -i FILE
prune FILE
ps FILE
report R -i FILE
revive R -i FILE
setup FILE
shell R a -i FILE
signal R TERM -i FILE
snapshot R -i FILE
top R -i FILE
trust FILE
up FILE -- train.py
wait R -i FILE
"""


def seconds_until_output(words: list[str], folder: Path) -> float:
    """Until the command has printed something that can be seen on its terminal. The command is then killed."""
    command = [sys.executable, "-m", "orchestrator.cli", *words]
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(folder)}
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder,
        stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        printed = b""
        while not _text(printed) and time.monotonic() < began + READ_WITHIN:
            if select.select([ours], [], [], 0.1)[0]:
                printed += os.read(ours, 4096)
        seconds = time.monotonic() - began
        assert _text(printed), f"nothing within {READ_WITHIN:g} s"
        assert words == ["--help"] or process.poll() is None
        return seconds
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)


@pytest.fixture(scope="module")
def help_seconds(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What it takes to start Python and to read the command line."""
    folder = tmp_path_factory.mktemp("help")
    return min(seconds_until_output(["--help"], folder) for _ in range(3))


@pytest.mark.parametrize("arguments", [line.split() for line in COMMANDS.splitlines()], ids=" ".join)
def test_a_command_on_a_terminal_says_at_once_that_it_starts(
    arguments: list[str], tmp_path: Path, help_seconds: float
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(
            f"hosts: [{{name: a, address: 127.0.0.1, port: {silent.getsockname()[1]}}}]\nnotify: {{command: 'true'}}\n"
        )
        (tmp_path / "train.py").write_text("import torch")
        words = [str(inventory) if word == "FILE" else word for word in arguments]
        limit = SLOWER * help_seconds + SLACK
        seconds = []
        while len(seconds) < TRIES and min(seconds, default=READ_WITHIN) > limit:
            seconds.append(seconds_until_output(words, tmp_path))
        assert min(seconds) <= limit, f"{seconds}, --help takes {help_seconds:.3f} s"


def _text(printed: bytes) -> str:
    """Without what only moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode(errors="replace")).strip()
