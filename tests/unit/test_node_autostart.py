"""The line of `run.autostart` in a crontab, with a stand-in for that program. tests/chaos/test_revive.py runs cron."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
import stand_in_crontab

from orchestrator.node.guard import autostart
from orchestrator.node.host import crontab, state
from orchestrator.node.serve import retire

RUN = "20261123-150000-abcd"
OWN = "0 5 * * * printf 'a\\tb\\n' | grep -c '100\\%'"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The crontab, with a line of the user and that of a run."""
    table = stand_in_crontab.put_in_path(tmp_path, monkeypatch)
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    program = tmp_path / "state/node-0123/__main__.py"
    folder = Path(state.folder("runs", RUN))
    program.parent.mkdir()
    program.touch()
    table.write_text(OWN + "\n")
    spec = {"run_id": RUN, "autostart": "cron", "program": str(program)}
    autostart.install(str(folder), spec, {"secrets": {}})
    program.unlink()
    return table


def boot(table: Path) -> None:
    """Run the line of the run as cron does."""
    line = next(line for line in table.read_text().splitlines() if line.startswith("@reboot "))
    command, *data = line[len("@reboot ") :].replace("\\%", "\0").split("%")
    assert not data
    subprocess.run(["sh", "-c", command.replace("\0", "%")], check=False, timeout=10, stdin=subprocess.DEVNULL)


def test_the_line_of_a_run_that_is_gone_removes_itself_and_no_other(table: Path) -> None:
    assert crontab.run_ids() == [RUN]
    boot(table)
    assert table.read_text() == OWN + "\n"


def test_the_only_line_removes_itself(table: Path) -> None:
    table.write_text("")
    crontab.add(RUN, crontab.removal(RUN))
    boot(table)
    assert table.read_text().strip() == ""


def test_a_crontab_that_cannot_be_read_stays_as_it_is(table: Path) -> None:
    before = table.read_text()
    (table.parent / "broken").touch()
    boot(table)
    assert table.read_text() == before


def sleep_by(table: Path, command: str) -> None:
    """Have programs sleep by this command of the shell."""
    sleep = table.parent / "bin/sleep"
    sleep.write_text(f"#!/bin/sh\n{command}\n")
    sleep.chmod(0o755)


def test_the_line_stays_if_the_disk_with_the_state_folder_is_not_mounted(table: Path) -> None:
    sleep_by(table, "true")
    before = table.read_text()
    base = table.parent / "state"
    base.rename(table.parent / "disk")
    boot(table)
    base.mkdir(0o700)  # where it is mounted later
    boot(table)
    assert table.read_text() == before
    base.rmdir()
    (table.parent / "disk").rename(base)
    boot(table)
    assert table.read_text() == OWN + "\n"


def test_the_line_waits_until_the_disk_with_the_state_folder_is_mounted(table: Path) -> None:
    base, disk, started = (table.parent / name for name in ("state", "disk", "started"))
    (base / "node-0123/__main__.py").write_text(f"import sys; open({str(started)!r}, 'w').write(sys.argv[2])")
    base.rename(disk)
    sleep_by(table, f"mv {disk} {base}")
    boot(table)
    assert started.read_text() == RUN


def test_the_line_has_no_character_that_only_some_crons_give_a_meaning() -> None:
    assert "%" not in crontab.removal(RUN)  # a newline to cron, unless escaped; not to that of busybox


def set_age(folder: Path, seconds: float) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.usefixtures("table")
def test_a_run_that_this_host_rejoins_is_not_deleted_for_a_week_but_one_whose_line_is_gone_is() -> None:
    folder = Path(state.run_folder(RUN))
    keep = {"runs": 0, "days": 14}
    set_age(folder, 2 * 3600)
    assert (retire.look(keep)["due"], retire.look(keep)["others"]) == ([], [RUN])
    set_age(folder, 8 * 86400)
    assert [due["run_id"] for due in retire.look(keep)["due"]] == [RUN]
    set_age(folder, 2 * 3600)
    crontab.remove(RUN)
    assert [due["run_id"] for due in retire.look(keep)["due"]] == [RUN]
