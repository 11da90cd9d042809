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


def test_a_command_does_not_have_the_place_of_this_process_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "OTHER_RANK"):
        monkeypatch.setenv(name, "0")
    pipe = LocalConnection().open("env", 10)
    output = b""
    while data := pipe.recv(4096, 10):
        output += data
    pipe.close()
    assert [line for line in output.decode().splitlines() if "_RANK=" in line or "PROCID" in line] == ["OTHER_RANK=0"]
