"""What is shown of a run's secrets where their values are not known. The host is this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .local import orch

TOKEN, PIN = "correct-horse-battery", "hunt3r2"


def test_secrets_that_cannot_be_hidden_are_named_and_their_values_are_in_no_record(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print('got', os.environ['TOKEN'], os.environ['PIN'])")
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    (tmp_path / "inventory.yaml").write_text(hosts + "run: {launcher: direct, sync: none}\n")
    (tmp_path / "secrets.yaml").write_text(
        hosts.replace("localhost", f"localhost, workdir: {tmp_path}")
        + "run: {launcher: direct, secrets: [TOKEN, PIN]}\n"
    )
    env = {"TOKEN": TOKEN, "PIN": PIN}
    up = orch(tmp_path, "up", "secrets.yaml", "--name", "mine", "--skip-check", "--", "train.py", env=env)
    assert up.returncode == 0, up.stderr
    assert re.search(r"\bPIN: .*\b8\b", up.stderr)
    assert TOKEN not in up.stdout and f"*** {PIN}" in up.stdout

    for command in (["logs"], ["logs", "--json"], ["diagnose"], ["report"], ["top"]):
        shown = orch(tmp_path, *command, "mine", "-i", "inventory.yaml")
        assert ": PIN, TOKEN." in shown.stderr, (command, shown)
        hidden = orch(tmp_path, *command, "mine", "-i", "inventory.yaml", env=env)
        assert "TOKEN" not in hidden.stderr and TOKEN not in hidden.stdout, (command, hidden)
    assert TOKEN in orch(tmp_path, "logs", "mine", "-i", "inventory.yaml").stdout
    for record in (tmp_path / "state").rglob("*.json*"):
        assert TOKEN not in record.read_text() and PIN not in record.read_text(), record
