"""`fetch`: what a host sends arrives whole; what a hostile host sends goes nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import MalformedAnswer, decode
from orchestrator.answers.files import OUTPUTS, FileData
from orchestrator.errors import UnreachableError
from orchestrator.node.host import state
from orchestrator.node.serve import outputs
from orchestrator.runs import receiving
from orchestrator.runs.receiving import Receiver, RemoteFile, SizeLimit, Source, SourceListing


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


def listed(pattern: str = "") -> list[RemoteFile]:
    return check_listing(outputs.listing({"run_id": "run-1", "pattern": pattern, "parts": ["output", "code"]}))


def check_listing(listing: Any) -> list[RemoteFile]:
    return receiving.check_listing(OUTPUTS.decode(listing))


def download_files(folder: Path, files: list[RemoteFile]) -> Receiver:
    receiver = Receiver(folder, files, SizeLimit(files))
    asked = {"run_id": "run-1", "paths": [one.path for one in files]}
    outputs.send(asked, lambda header, payload: receiver.take(decode(FileData, header, "send"), payload))
    return receiver


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_files_arrive_as_they_are_and_are_not_wanted_again_until_they_change(out: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    files = listed()
    assert download_files(here, files).problems == []
    (out / "latest").unlink()
    (out / "fifo").unlink()
    assert tree(here) == tree(out)
    assert all(receiving.is_here(here, one) for one in listed())
    (out / "empty").write_text("no longer")
    assert [one.path for one in listed() if not receiving.is_here(here, one)] == ["empty"]


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
    with pytest.raises((UnreachableError, MalformedAnswer)):
        check_listing({"files": [["fine", 1, 1], entry]})


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "logs").symlink_to(elsewhere)
    (elsewhere / "mine").write_text("mine")
    (here / "file").symlink_to(elsewhere / "mine")
    files = [RemoteFile("logs/x", 1, 1), RemoteFile("file", 1, 1)]
    receiver = Receiver(here, files, SizeLimit(files))
    receiver.take(FileData(0, end=True, mtime=1), b"x")
    receiver.take(FileData(1, end=True, mtime=1), b"y")
    assert len(receiver.problems) == 1 and str(here / "logs") in receiver.problems[0]
    assert tree(elsewhere) == {"mine": b"mine"}
    assert not (here / "file").is_symlink() and (here / "file").read_text() == "y"


@pytest.mark.parametrize(
    "frames",
    [
        [(FileData(0), bytes(receiving.GROWTH + 20))],  # more than it said
        [(FileData(0), b"x"), (FileData(0, error="gone"), b"")],
        [(FileData(0), b"x"), (FileData(0, end=True, mtime=10**40), b"")],
        [(FileData(0), b"x")],  # and then silence
        [(FileData(9, end=True), b"x")],
    ],
)
def test_a_file_that_is_not_whole_leaves_nothing(tmp_path: Path, frames: list[tuple[FileData, bytes]]) -> None:
    files = [RemoteFile("x", 1, 1)]
    receiver = Receiver(tmp_path / "here", files, SizeLimit(files))
    for header, payload in frames:
        receiver.take(header, payload)
    receiver.give_up()
    assert receiver.problems or receiver.done == 0
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "here"])


def test_a_file_that_has_gone_does_not_keep_the_others(out: Path, tmp_path: Path) -> None:
    files = listed("*.pt") + listed("empty") + listed("logs")
    (out / "empty").unlink()
    receiver = download_files(tmp_path / "here", files)
    assert [one.split(":")[0] for one in receiver.problems] == ["empty"]
    assert sorted(tree(tmp_path / "here")) == ["big.pt", "logs/a.json", "logs/deep/b.json"]


def test_many_files_together_grow_no_more_than_one(tmp_path: Path) -> None:
    files = [RemoteFile(f"{number}", 0, 1) for number in range(20)]
    receiver = Receiver(tmp_path, files, SizeLimit(files))
    for number in range(20):
        receiver.take(FileData(number), bytes(receiving.GROWTH // 4))
        receiver.take(FileData(number, end=True, mtime=1), b"")
    assert sum(map(len, tree(tmp_path).values())) <= receiving.GROWTH
    assert sorted(tree(tmp_path)) == ["0", "1", "2", "3"] and len(receiver.problems) == 16


@pytest.mark.parametrize(
    "files",
    [7, None, [["a", 10**400, 1]], [["a", 1, 10**400]], [["a", -1, 1]], [["a", "1", 1]], [[]], [7], ["abc"]],
)
def test_a_listing_that_no_host_could_have_is_refused(files: Any) -> None:
    with pytest.raises((UnreachableError, MalformedAnswer), match=r"listing|outputs\.files"):
        check_listing({"files": files})


def test_a_host_whose_files_find_no_room_stops_no_other(tmp_path: Path) -> None:
    evil, good = (
        SourceListing(Source(tmp_path / "new" / host), [RemoteFile("a", size, 1)], None)
        for host, size in (("evil", 10**15), ("good", 7))
    )
    assert list(receiving.refuse(tmp_path / "new", {"evil": [evil], "good": [good]})) == ["evil"]


def test_nothing_is_written_through_a_link_in_the_place_of_a_hosts_folder(tmp_path: Path) -> None:
    (tmp_path / "evil").symlink_to(tmp_path)
    evil, good = (SourceListing(Source(tmp_path / host), [RemoteFile("a", 7, 1)], None) for host in ("evil", "good"))
    (refused,) = receiving.refuse(tmp_path, {"evil": [evil], "good": [good]}).values()
    assert str(refused).startswith(f"evil: {tmp_path / 'evil'} ")
