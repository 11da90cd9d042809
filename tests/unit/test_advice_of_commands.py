"""What commands say to do next works where it is pasted."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.describe import MOST_FOLDERS, NEWEST_EVENTS, _lines
from orchestrator.commands.restart import repeat
from orchestrator.commands.trust import sharing_a_key
from orchestrator.commands.up_options import UpOptions
from orchestrator.runs import recent

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


def page_of_describe(**given: object) -> dict[str, object]:
    names = "run_id name state started_at by ended_at first_failure command launcher inventory"
    lists: dict[str, object] = {"setup": [], "nodes": [], "events": [], "files": {}, "ranks": {}}
    return (
        dict.fromkeys(names.split(), "x")
        | lists
        | {"attempt": 1, "max_restarts": 0, "workdir": "/x", "waits": None, "if_head_lost": None}
        | given
    )


def test_describe_names_the_command_that_shows_all_events() -> None:
    event = {"at": "2026-11-24T20:00:00Z", "kind": "change", "what": "it began"}
    lines = _lines(page_of_describe(events=[event] * (NEWEST_EVENTS + 1), code=None), "ddp-orch events mine -i i.yaml")
    assert any("ddp-orch events mine -i i.yaml" in line for line in lines)


def test_describe_shows_the_folders_of_few_hosts_and_no_microseconds() -> None:
    files = {f"h{number}": {"record": f"/r{number}", "outputs": None} for number in range(MOST_FOLDERS + 2)}
    page = page_of_describe(code=None, files=files, started_at="2026-11-24T20:00:00.123456Z")
    lines = "\n".join(_lines(page, "x"))
    assert "20:00:00Z" in lines and "123456" not in lines
    assert f"/r{MOST_FOLDERS - 1}" in lines and f"/r{MOST_FOLDERS}" not in lines and "2 more hosts" in lines


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


@pytest.mark.parametrize(
    ("before", "now", "without", "words"),
    [
        ({}, {}, [], ""),
        ({}, {"detach": True}, ["b"], " --detach --hosts '!b'"),
        ({"hosts": "a,b,c"}, {"hosts": "a,b,c"}, ["b"], " --hosts 'a,b,c!b'"),
        ({"hosts": "a"}, {}, [], " --hosts '*'"),
        ({"settings": ("k=1",)}, {"settings": ("k=1", "k=2")}, [], " --set k=2"),
    ],
)
def test_a_restart_is_advised_with_what_it_does_not_know(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    now: dict[str, Any],
    without: list[str],
    words: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_id = "20261122-070000-abcd"
    recent.remember("i.yaml", run_id, "mine")
    recent.remember_command(run_id, asdict(replace(UP, **before)))
    command = replace(UP, **now).command_to_restart(run_id, "i.yaml", without=without)
    assert command == f"ddp-orch restart {run_id}{words} -i i.yaml"
