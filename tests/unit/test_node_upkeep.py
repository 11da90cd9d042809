"""Files of a running run, and cleaners of old files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from lab.waiting import wait_until

from orchestrator.node.recorder import upkeep

OLD = time.time() - 40 * 86400


def make_old(base: Path) -> list[Path]:
    """As systemd-tmpfiles and tmpwatch see it, but for the time of the last change of an inode."""
    paths = [base, *base.rglob("*")]
    for path in paths:
        os.utime(path, (OLD, OLD), follow_symlinks=False)
    return paths


def accessed(path: Path) -> float:
    return path.stat(follow_symlinks=False).st_atime


@pytest.fixture
def base(tmp_path: Path) -> Path:
    home = tmp_path / "0123456789ab"
    for name in ("runs/R/log/1.0.out.seg", "runs/R/code/pkg/late.py", "runs/other/spec.json", "out/mine/step-1.pt",
                 "out/theirs/step-1.pt", "locks/gpu-0", "code/SHA/train.py", "code/OTHER/train.py"):  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    (tmp_path / "node-SHA" / "node").mkdir(parents=True)
    (tmp_path / "node-SHA" / "node" / "guard.py").write_text("x")
    os.mkfifo(home / "runs/R/fifo")
    (home / "runs/R/link").symlink_to(home / "runs/other/spec.json")
    return tmp_path


def test_a_run_s_files_are_renewed_and_no_others(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make_old(base)
    home = base / "0123456789ab"
    spec = {"name": "mine", "program": str(base / "node-SHA"), "code": {"sha256": "SHA"}}
    monkeypatch.setattr(upkeep, "EVERY", 0.05)
    upkeep.start(str(home / "runs" / "R"), spec)
    mine = [home / "runs/R", home / "out/mine", home / "locks", home / "code/SHA", base / "node-SHA"]
    expected = {path for path in paths if any(path == one or one in path.parents for one in mine)}
    # the folders above are only removed when they are empty
    wait_until(lambda: all(accessed(path) > OLD + 1 for path in expected), 10.0, "they are renewed")
    assert {path for path in paths if accessed(path) > OLD + 1} == expected
    assert all(abs(path.stat(follow_symlinks=False).st_mtime - OLD) < 1 for path in paths)


def test_what_has_gone_is_no_error(tmp_path: Path) -> None:
    upkeep.renew(str(tmp_path / "gone"))
