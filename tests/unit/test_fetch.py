"""`fetch`: what a host sends arrives whole; what a hostile host sends goes nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator import fetch
from orchestrator.errors import UnreachableError
from orchestrator.fetch import Receiver, Remote
from orchestrator.node import outputs, state


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output folder of a run on a host, with files and a link."""
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    Path(state.run_folder("run-1")).mkdir()
    state.write(state.run_folder("run-1") + "/spec.json", {"name": "mine"})
    folder = Path(state.folder("out")) / "mine"
    (folder / "logs" / "deep").mkdir(parents=True)
    (folder / "big.pt").write_bytes(os.urandom(600_000))
    (folder / "empty").touch()
    (folder / "logs" / "a.json").write_text("a")
    (folder / "logs" / "deep" / "b.json").write_text("b")
    (folder / "latest").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    return folder


def listed(pattern: str = "") -> list[Remote]:
    return fetch.checked(outputs.listing({"run_id": "run-1", "pattern": pattern}))


def bring(folder: Path, files: list[Remote]) -> Receiver:
    receiver = Receiver(folder, files)
    outputs.send({"run_id": "run-1", "paths": [one.path for one in files]}, receiver.take)
    return receiver


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_files_arrive_as_they_are_and_are_not_wanted_again_until_they_change(out: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    files = listed()
    assert bring(here, files).problems == []
    (out / "latest").unlink()
    (out / "fifo").unlink()
    assert tree(here) == tree(out)
    assert all(fetch.is_here(here, one) for one in listed())
    (out / "empty").write_text("no longer")
    assert [one.path for one in listed() if not fetch.is_here(here, one)] == ["empty"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.pt", ["big.pt"]),
        ("*.json", []),
        ("**/*.json", ["logs/a.json", "logs/deep/b.json"]),
        ("logs", ["logs/a.json", "logs/deep/b.json"]),
        ("logs/*/b*", ["logs/deep/b.json"]),
        ("latest", []),
    ],
)
def test_a_pattern_chooses(out: Path, pattern: str, found: list[str]) -> None:
    assert [one.path for one in listed(pattern)] == found


@pytest.mark.parametrize(
    "entry",
    [
        ["../x", 1, 1],
        ["/etc/x", 1, 1],
        ["a/../../x", 1, 1],
        ["a//x", 1, 1],
        ["", 1, 1],
        [".", 1, 1],
        ["a\0b", 1, 1],
        ["\ud800", 1, 1],
        ["x", -1, 1],
        ["x", "1", 1],
        ["x", 1],
        "x",
        7,
    ],
)
def test_a_listing_that_leads_elsewhere_is_refused_as_a_whole(entry: Any) -> None:
    with pytest.raises(UnreachableError):
        fetch.checked({"files": [["fine", 1, 1], entry]})


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "logs").symlink_to(elsewhere)
    (elsewhere / "mine").write_text("mine")
    (here / "file").symlink_to(elsewhere / "mine")
    receiver = Receiver(here, [Remote("logs/x", 1, 1), Remote("file", 1, 1)])
    receiver.take({"file": 0, "end": True, "mtime": 1}, b"x")
    receiver.take({"file": 1, "end": True, "mtime": 1}, b"y")
    assert len(receiver.problems) == 1 and "is a link here" in receiver.problems[0]
    assert tree(elsewhere) == {"mine": b"mine"}
    assert not (here / "file").is_symlink() and (here / "file").read_text() == "y"


@pytest.mark.parametrize(
    "frames",
    [
        [({"file": 0}, bytes(fetch.GROWTH + 20))],  # more than it said
        [({"file": 0}, b"x"), ({"file": 0, "error": "gone"}, b"")],
        [({"file": 0}, b"x"), ({"file": 0, "end": True, "mtime": 10**40}, b"")],
        [({"file": 0}, b"x")],  # and then silence
        [({"file": 9, "end": True}, b"x"), ({"file": None}, b""), ({}, b"")],
    ],
)
def test_a_file_that_is_not_whole_leaves_nothing(tmp_path: Path, frames: list[tuple[dict[str, Any], bytes]]) -> None:
    receiver = Receiver(tmp_path / "here", [Remote("x", 1, 1)])
    for header, payload in frames:
        receiver.take(header, payload)
    receiver.give_up()
    assert receiver.problems or receiver.done == 0
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "here"])


def test_a_file_that_has_gone_does_not_keep_the_others(out: Path, tmp_path: Path) -> None:
    files = listed("*.pt") + listed("empty") + listed("logs")
    (out / "empty").unlink()
    receiver = bring(tmp_path / "here", files)
    assert [one.split(":")[0] for one in receiver.problems] == ["empty"]
    assert sorted(tree(tmp_path / "here")) == ["big.pt", "logs/a.json", "logs/deep/b.json"]
