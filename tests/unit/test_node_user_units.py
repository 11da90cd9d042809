"""The systemd units of `run.autostart`: their files. tests/chaos/test_revive.py shows that systemd starts them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.node.host import login_session, state, user_units


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the units of a user are, on a host where systemd starts them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(user_units, "why_unusable", lambda: None)
    monkeypatch.setattr(login_session, "lingers", lambda: True)
    return tmp_path / ".config/systemd/user"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.service"))


def test_a_unit_exists_until_it_is_removed_and_others_stay(folder: Path) -> None:
    other = folder / "default.target.wants/mine.service"
    other.parent.mkdir(parents=True)
    other.touch()
    for run_id in ("20261123-150000-abcd", "20261123-150000-ef01"):
        user_units.add(run_id, "true")
    name = f"ddp-orch-20261123-150000-abcd-{state.host_id()}.service"
    assert {name, f"default.target.wants/{name}"} < set(files(folder))
    assert (folder / "default.target.wants" / name).resolve() == folder / name
    assert sorted(user_units.run_ids()) == ["20261123-150000-abcd", "20261123-150000-ef01"]
    user_units.remove("20261123-150000-abcd", "20261123-160000-0000")
    assert user_units.run_ids() == ["20261123-150000-ef01"]
    subprocess.run(user_units.removal("20261123-150000-ef01"), shell=True, check=True)
    assert files(folder) == ["default.target.wants/mine.service"]


def test_a_unit_of_another_host_that_shares_the_home_stays(folder: Path) -> None:
    folder.mkdir(parents=True)
    other = folder / "ddp-orch-20261123-150000-abcd-0123456789ab.service"
    other.touch()
    user_units.add("20261123-150000-abcd", "true")
    user_units.remove("20261123-150000-abcd")
    assert files(folder) == [other.name]


def test_a_unit_that_cannot_be_written_is_refused_and_leaves_nothing(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "default.target.wants").touch()
    with pytest.raises(user_units.Unusable, match=r"default\.target\.wants"):
        user_units.add("20261123-150000-abcd", "true")
    assert files(folder) == []


def test_without_lingering_a_unit_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_session, "lingers", lambda: False)
    with pytest.raises(user_units.Unusable, match="enable-linger"):
        user_units.add("20261123-150000-abcd", "true")
    assert not folder.exists()


def test_systemd_reads_the_unit_without_a_complaint(folder: Path) -> None:
    user_units.add("20261123-150000-abcd", "exec '/a b/c%n' \"$HOME\\t\"")
    (path,) = folder.glob("*.service")
    shown = subprocess.run(["systemd-analyze", "verify", "--user", path], capture_output=True, text=True, check=False)
    assert not [line for line in (shown.stdout + shown.stderr).splitlines() if path.name in line]


def test_what_has_a_meaning_in_a_unit_is_quoted() -> None:
    assert user_units.quote("""%h$X"\\'""") == """\"%%h$$X\\"\\\\'\""""
