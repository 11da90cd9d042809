"""The private folder on a host, and files in it that are whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from orchestrator.node.host import state
from orchestrator.node.host.state import StateError


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
        state.write_last(str(tmp_path), {"node": 0, "outcome": None, "failures": []})
        assert [one.name for one in tmp_path.iterdir()] == ["exit.json"]


class Machine:
    """What a host is known by, and the file system that its state folder lies on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.be("node-a", "machine-1", "boot-1", namespace=1)

    def be(self, hostname: str, machine_id: str, boot_id: str, namespace: int = 1, disk: str = "ext4") -> str:
        """Become this host. Returns the name of its folder."""
        set_attribute = self._monkeypatch.setattr
        set_attribute(socket, "gethostname", lambda: hostname)
        set_attribute(state, "machine_id", lambda: machine_id)
        set_attribute(state, "boot_id", lambda: boot_id)
        set_attribute(state, "_pid_namespace", lambda: namespace)
        set_attribute(state, "filesystem", lambda _: disk)
        set_attribute(state, "_HOST_IDS", {})
        return Path(state.folder("runs")).parent.name


@pytest.fixture
def machine(base: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_renamed_host_finds_its_runs_at_once_and_after_a_reboot(machine: Machine) -> None:
    before = machine.be("node-a", "machine-1", "boot-1")
    assert machine.be("node-b", "machine-1", "boot-1") == before
    assert machine.be("node-c", "machine-1", "boot-2", namespace=2) == before


def test_a_container_with_a_new_hostname_finds_the_runs_of_the_one_before(base: Path, machine: Machine) -> None:
    before = machine.be("3f2a", "", "boot-1", namespace=1)
    long_ago = time.time() - state.UNUSED_AFTER - 60
    os.utime(base / before / "host.json", (long_ago, long_ago))
    assert machine.be("9c1d", "", "boot-1", namespace=2) == before
    assert machine.be("77e0", "", "boot-2", namespace=1) == before


def test_containers_that_share_a_disk_have_folders_of_their_own(machine: Machine) -> None:
    one = machine.be("3f2a", "", "boot-1", namespace=1)
    other = machine.be("9c1d", "", "boot-1", namespace=2)
    assert one != other
    assert [machine.be("3f2a", "", "boot-1", namespace=1), machine.be("9c1d", "", "boot-1", namespace=2)] == [
        one,
        other,
    ]


def test_a_container_beside_one_that_runs_something_has_a_folder_of_its_own(base: Path, machine: Machine) -> None:
    before = machine.be("3f2a", "", "boot-1", namespace=1)
    run = Path(state.run_folder("run-1"))
    run.mkdir()
    with (run / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert machine.be("9c1d", "", "boot-1", namespace=2) != before
        assert machine.be("3f2a", "", "boot-1", namespace=1) == before


def test_hosts_that_share_a_disk_have_folders_of_their_own(machine: Machine) -> None:
    names = [
        machine.be("node-a", "machine-1", "boot-1", disk="nfs4"),
        machine.be("node-b", "machine-2", "boot-2", disk="nfs4"),
        machine.be("node-c", "machine-1", "boot-3", disk="nfs4"),  # a clone with the machine-id of node-a
    ]
    assert len({*names}) == 3
    assert machine.be("node-a", "machine-1", "boot-9", disk="nfs4") == names[0]
    assert machine.be("node-e", "machine-2", "boot-2", disk="nfs4") in names  # renamed since


def test_a_folder_of_the_time_before_hosts_were_recorded_is_still_found(base: Path, machine: Machine) -> None:
    before = machine.be("node-a", "machine-1", "boot-1")
    (base / before / "host.json").unlink()
    assert machine.be("node-a", "machine-1", "boot-2") == before
    assert machine.be("node-b", "machine-1", "boot-2") == before


def test_a_place_that_had_to_be_passed_over_is_named_and_looked_at_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, second = tmp_path / "home" / ".local" / "state" / "ddp-orch", tmp_path / "var" / "ddp-orch"
    home.mkdir(parents=True, mode=0o755)
    monkeypatch.delenv("DDP_ORCH_STATE_DIR", raising=False)
    monkeypatch.setattr(state, "_candidates", lambda: [str(home), str(second)])
    monkeypatch.setattr(state, "_HOST_IDS", {})
    assert state.base() == str(second)
    (why,) = state.passed_over()
    assert why.startswith(f"{home} ")
    Path(state.run_folder("run-there")).mkdir()
    home.chmod(0o700)
    assert (state.base(), state.passed_over()) == (str(home), [])
    Path(state.run_folder("run-here")).mkdir()
    assert {run_id: Path(folder).parents[2] for run_id, folder in state.runs()} == {
        "run-here": home,
        "run-there": second,
    }
    assert Path(state.run_folder("run-there")).is_dir()
    assert Path(state.run_folder("run-new")).parents[2] == home


def test_a_place_that_is_not_there_is_no_reason_to_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_ORCH_STATE_DIR", raising=False)
    (tmp_path / "file").touch()
    places = [str(tmp_path / "file" / "ddp-orch"), str(tmp_path / "ddp-orch"), str(tmp_path / "third")]
    monkeypatch.setattr(state, "_candidates", lambda: places)
    assert (state.base(), state.passed_over()) == (places[1], [])
    assert not Path(places[2]).exists()
