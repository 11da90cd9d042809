"""What commands say to do next works where it is pasted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.commands.describe import NEWEST_EVENTS, _lines
from orchestrator.commands.restart import repeat
from orchestrator.commands.trust import sharing_a_key
from orchestrator.commands.up import UpOptions

UP = UpOptions(
    inventory="i.yaml",
    script=("train.py",),
    watch=True,
)


@pytest.mark.parametrize("detach", [False, True])
def test_a_restarted_run_is_watched_as_before_unless_it_is_detached(detach: bool) -> None:
    again = repeat(UP, "/i.yaml", "mine", detach=detach)
    assert again.watch is not detach
    assert ("--watch" in again.command("/i.yaml")) is not detach


def test_describe_names_the_command_that_shows_all_events() -> None:
    names = "run_id name state started_at by ended_at first_failure command launcher inventory"
    page = dict.fromkeys(names.split(), "x")
    event = {"at": "2026-11-24T20:00:00Z", "what": "it began"}
    lists = {"setup": [], "nodes": [], "events": [event] * (NEWEST_EVENTS + 1), "files": {}, "ranks": {}}
    lines = _lines(
        {**page, **lists, "attempt": 1, "max_restarts": 0, "workdir": None, "code": None},
        "ddp-orch events mine -i i.yaml",
    )
    assert any("ddp-orch events mine -i i.yaml" in line for line in lines)


def test_hosts_with_the_same_key_are_named() -> None:
    assert sharing_a_key([("c", b"1"), ("b", b"2"), ("a", b"1"), ("b", b"2")]) == [["a", "c"]]
    assert sharing_a_key([("c", b"1"), ("b", b"2")]) == []


def test_a_dry_run_tells_of_secrets_that_are_not_set(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [a]\nrun: {secrets: [NO_SUCH_TOKEN, PATH]}\n")
    (tmp_path / "train.py").write_text("")
    argv = [sys.executable, "-m", "orchestrator.cli", "up", "--dry-run", "--", "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "NO_SUCH_TOKEN" in done.stderr and "PATH" not in done.stderr
