"""On a terminal, a command says that it starts before it loads what it needs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import cli
from orchestrator.commands.options import LOCAL, Command

SHOW = """
import sys
from orchestrator.cli import cli
from orchestrator.output.console import Console

def show(console, message):
    slow = ("orchestrator.hosts", "orchestrator.ssh", "paramiko")
    print("status:", message, [name for name in sys.modules if name.startswith(slow)])
    sys.exit()

Console.status = show
cli(sys.argv[1:])
"""


def first_status(words: list[str], folder: Path) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SHOW, *words]
    env = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(folder)}
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=env,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    os.close(ours)
    return done.stdout


@pytest.mark.parametrize("words", ["check", "report R", "exec -- true", "logs -f R"])
def test_it_says_so_before_it_loads_what_connects_to_hosts(words: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [a]\n")
    assert first_status(words.split(), tmp_path) == "status: starting []\n"


@pytest.mark.parametrize("words", ["config", "diagnose --log train.log"])
def test_a_command_that_connects_to_no_host_says_nothing(words: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [a]\n")
    (tmp_path / "train.log").write_text("done\n")
    assert "status:" not in first_status(words.split(), tmp_path)


def test_every_command_that_connects_says_so() -> None:
    others = [name for name, command in cli.commands.items() if not isinstance(command, Command)]
    assert set(others) <= set(LOCAL), others
    assert set(LOCAL) <= set(cli.commands)
