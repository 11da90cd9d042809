"""`localhost`, without SSH: a command runs where a login would begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.ssh.pipe import LocalConnection


@pytest.mark.parametrize("home, begins", [("home", "home"), ("missing", "/")])
def test_a_command_begins_in_the_home_or_at_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, begins: str
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / home))
    pipe = LocalConnection().open("pwd -P", 10)
    assert pipe.recv(4096, 10).decode().strip() == str((tmp_path / begins).resolve())
    pipe.close()
