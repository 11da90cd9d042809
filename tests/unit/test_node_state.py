"""The private folder on a host, and files in it that are whole or not there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from orchestrator.node import state
from orchestrator.node.state import StateError


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_folders_are_private_and_made_when_needed(base: Path) -> None:
    made = Path(state.folder("runs"))
    assert made.parent.parent == base
    assert made.parent.name == state.host_id()
    for folder in (base, made.parent, made):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_open_to_others_is_refused_with_the_way_to_mend_it(base: Path) -> None:
    base.mkdir(mode=0o755)
    with pytest.raises(StateError, match="chmod 700"):
        state.base()


def test_a_link_in_place_of_the_folder_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        state.base()


def test_a_folder_of_another_user_is_refused(base: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    base.mkdir(mode=0o700)
    os.chown(base, 12345, 12345)
    with pytest.raises(StateError, match="belongs to uid 12345"):
        state.base()


def test_a_shared_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_ORCH_STATE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(state, "filesystem", lambda path: "nfs4" if path.startswith(str(tmp_path)) else "ext4")
    monkeypatch.setattr(state, "_private", lambda path: path)
    assert state.base() == f"/var/tmp/ddp-orch-{os.geteuid()}"
    monkeypatch.setattr(state, "filesystem", lambda path: "ext4")
    assert state.base() == str(tmp_path / ".local/state/ddp-orch")


@pytest.mark.parametrize(
    "name", ["", "ab", "..", "../../etc", "a/b", "/abs", "Abc", "-abc", "a" * 62, "abc\n", "abc\0", "äbcd", "a.bcd"]
)
def test_a_run_id_that_could_be_a_path_is_refused(base: Path, name: str) -> None:
    with pytest.raises(StateError):
        state.run_folder(name)


def test_the_type_of_a_file_system_is_found_by_its_longest_mount_point() -> None:
    assert state.filesystem("/proc/self") == "proc"
    assert state.filesystem("/nowhere/at/all") == state.filesystem("/")


@pytest.mark.parametrize("write", [state.write, state.replace])
def test_what_was_written_is_read_back_and_private(tmp_path: Path, write: object) -> None:
    path = tmp_path / "some.json"
    assert callable(write)
    write(str(path), {"name": "caf\udce9", "n": [1, None]})
    assert state.read(str(path)) == {"name": "caf\udce9", "n": [1, None]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["some.json"]


def test_every_truncation_of_a_file_is_no_record_and_never_a_wrong_one(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    state.write(str(path), {"verdict": {"state": "succeeded"}, "node": 0})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert state.read(str(path)) is None
    assert state.read(str(tmp_path / "nowhere")) is None
    path.write_bytes(b"[1]")
    assert state.read(str(path)) is None


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    path = tmp_path / "state.json"
    state.write(str(path), {"phase": "running"})
    left = [taken]
    write = os.write

    def nearly_full(handle: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= (written := write(handle, data[: left[0]]))
        return written

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(OSError, match="No space"):
        state.write(str(path), {"phase": "exited"})
    monkeypatch.undo()
    assert state.read(str(path)) == {"phase": "running"}
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_the_last_record_gives_up_the_space_that_was_kept_for_it(tmp_path: Path) -> None:
    state.keep_space(str(tmp_path))
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= state.RESERVE
    for _ in range(2):  # the second time: a recorder was killed as it wrote
        state.write_last(str(tmp_path), {"node": 0})
        assert [one.name for one in tmp_path.iterdir()] == ["exit.json"]
