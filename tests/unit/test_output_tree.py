"""An output folder, as `run.resume` reads and changes it: nothing half, nothing outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.host import state
from orchestrator.node.resume import output_tree
from orchestrator.node.resume.copies import FILE, FOLDER, LINK, Entry
from orchestrator.node.resume.output_tree import Incoming


def copy(source: Path, target: Path) -> None:
    """All of one folder into another one, as two servers do it."""
    incoming = Incoming(str(target))
    for entry in output_tree.listing(str(source)):
        if entry.kind == FOLDER:
            incoming.make_folder(entry)
        elif entry.kind == LINK:
            incoming.make_link(entry)
        else:
            handle = output_tree.open_file(str(source), entry.path)
            file = incoming.begin_file(0)
            for offset, data in output_tree.pieces(handle, entry.size):
                file.write(offset, data)
            file.finish(entry)
            os.close(handle)
    incoming.finish()


def test_a_copy_has_the_same_bytes_times_modes_and_links(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "step 1" / "\udce9").mkdir(parents=True)
    (source / "step 1" / "model").write_bytes(os.urandom(3 << 20))
    (source / "step 1" / "run.sh").write_text("#!")
    (source / "step 1" / "run.sh").chmod(0o755)
    (source / "step 1" / "empty").touch()
    (source / "last").symlink_to("step 1/model")
    copy(source, tmp_path / "b")
    found = output_tree.listing(str(tmp_path / "b"))
    assert [entry._replace(disk=0) for entry in found] == [
        entry._replace(disk=0) for entry in output_tree.listing(str(source))
    ]
    assert len(found) == 6
    assert (tmp_path / "b" / "last").read_bytes() == (source / "last").read_bytes()
    assert not output_tree.is_incomplete(str(tmp_path / "b"))


def test_holes_of_a_file_stay_holes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / "sparse").open("wb") as file:
        file.seek(1 << 30)
        file.write(b"end")
        file.truncate((1 << 30) + 4096)
    copy(tmp_path / "a", tmp_path / "b")
    status = (tmp_path / "b" / "sparse").stat()
    assert status.st_size == (1 << 30) + 4096 and status.st_blocks * 512 < 1 << 20
    with (tmp_path / "b" / "sparse").open("rb") as file:
        file.seek(1 << 30)
        assert file.read(4) == b"end\0"


def test_what_leads_out_is_neither_listed_nor_made(tmp_path: Path) -> None:
    root = tmp_path / "out"
    (root / "in").mkdir(parents=True)
    for name, target in (("a", "/etc/passwd"), ("b", "../secret"), ("in/c", "../../secret"), ("in/d", "x/../../../y")):
        (root / name).symlink_to(target)
    (root / "in" / "fine").symlink_to("../in")
    os.mkfifo(root / "fifo")
    assert [entry.path for entry in output_tree.listing(str(root))] == ["in", "in/fine"]
    incoming = Incoming(str(root))
    for target in ("/etc", "../secret", "x/../../y"):
        with pytest.raises(OSError, match="leads out"):
            incoming.make_link(Entry("new", LINK, target=target))


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", "a//b", ".", ".ddp-orch.lock", "nul\0", "a/./b"])
def test_a_path_of_another_host_that_is_none_of_an_output_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "out" / "a").mkdir(parents=True)
    (tmp_path / "x").write_text("secret")
    root = str(tmp_path / "out")
    with pytest.raises(OSError, match="not a path"):
        output_tree.open_file(root, path)
    incoming = Incoming(root)
    with pytest.raises(OSError, match="not a path"):
        incoming.move_aside([path])
    with pytest.raises(OSError, match="not a path"):
        incoming.begin_file(1).finish(Entry(path, FILE))


def test_no_link_is_followed_on_the_way(tmp_path: Path) -> None:
    """A script of the user, or root of another host, may have put it there."""
    outside, root = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    root.mkdir()
    (outside / "secret").write_text("secret")
    (root / "way").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for path in ("way/secret", "file"):
        with pytest.raises(OSError):
            output_tree.open_file(str(root), path)
    with pytest.raises(OSError):
        Incoming(str(root)).begin_file(1).finish(Entry("way/secret", FILE))
    Incoming(str(root)).begin_file(1).finish(Entry("file", FILE, mode=0o600))  # replaces the link itself
    assert (outside / "secret").read_text() == "secret" and (root / "file").read_text() == ""


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("old")
    incoming = Incoming(str(tmp_path))
    file = incoming.begin_file(1)
    file.write(0, b"new and")
    assert (tmp_path / "model").read_text() == "old" and output_tree.is_incomplete(str(tmp_path))
    file.write(7, b" whole")
    file.finish(Entry("model", FILE, 13, 5, 0o600))
    assert (tmp_path / "model").read_text() == "new and whole"
    assert output_tree.is_incomplete(str(tmp_path))  # other files may be missing
    incoming.finish()
    assert os.listdir(tmp_path) == ["model"]


def test_what_an_interrupted_copy_has_left_is_gone_with_the_next_one(tmp_path: Path) -> None:
    Incoming(str(tmp_path)).begin_file(1).write(0, b"half")
    incoming = Incoming(str(tmp_path))
    assert output_tree.listing(str(tmp_path)) == []
    incoming.finish()
    assert os.listdir(tmp_path) == []


def test_files_that_are_moved_aside_are_kept_until_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "step-4").mkdir()
    (tmp_path / "step-4" / "model").write_text("mine")
    Incoming(str(tmp_path)).move_aside(["step-4/model", "step-4"])
    assert output_tree.listing(str(tmp_path)) == []
    kept = tmp_path / output_tree.REPLACED
    assert (kept / "step-4" / "model").read_text() == "mine"
    (tmp_path / "log").write_text("")
    Incoming(str(tmp_path)).move_aside(["log"])
    assert os.listdir(kept) == ["log"]


def test_folders_without_files_are_no_outputs(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / output_tree.KEPT / "now").mkdir(parents=True)
    (tmp_path / output_tree.KEPT / "now" / "old").touch()
    assert not state.has_files(str(tmp_path)) and not state.has_files(str(tmp_path / "missing"))
    (tmp_path / "checkpoints" / "best" / "model.pt").touch()
    assert state.has_files(str(tmp_path))


def test_files_that_only_this_host_has_are_kept_for_good(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert output_tree.leads(root) is None
    output_tree.mark_leads(root, True)
    marked = output_tree.leads(root)
    output_tree.mark_leads(root, True)
    again = output_tree.leads(root)
    assert marked is not None and again is not None and again > marked
    assert output_tree.listing(root) == [] and not state.has_files(root)
    (tmp_path / "model").write_text("mine")
    Incoming(root).move_aside(["model"], output_tree.KEPT + "/now")
    Incoming(root).move_aside([])
    assert (tmp_path / output_tree.KEPT / "now" / "model").read_text() == "mine"
    for _ in range(2):
        output_tree.mark_leads(root, False)
        assert output_tree.leads(root) is None


def test_hosts_recognise_a_folder_that_they_share(tmp_path: Path) -> None:
    root = str(tmp_path / "out")
    assert not output_tree.sees_token(root, "abc")
    output_tree.leave_token(root, "abc")
    assert output_tree.sees_token(root, "abc") and not output_tree.sees_token(str(tmp_path), "abc")
    assert output_tree.listing(root) == []
    output_tree.remove_token(root, "abc")
    output_tree.remove_token(root, "abc")
    assert os.listdir(root) == []
    with pytest.raises(OSError):
        output_tree.leave_token(root, "../abc")
