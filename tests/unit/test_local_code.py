"""A failure shows the line of the user's own script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.diagnosis.engine import Diagnosis
from orchestrator.diagnosis.rendering import render_text
from orchestrator.output.finding import Finding
from orchestrator.runs.local_code import finder

RUN = "20261124-201627-cde8"
SCRIPT = "import os\n\ndef load():\n\traise ValueError('bad\x1b[2J')\n\nload()\n"


def frame(path: str, line: int = 4) -> str:
    return f'File "/home/ann/.local/state/ddp-orch/7a92/runs/{RUN}/code/{path}", line {line}, in load'


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("folder", ["", "sub"])  # what was sent, or where the script runs
def test_a_frame_of_a_host_is_found_in_the_files_here(code: Path, folder: str) -> None:
    source = finder(RUN, str(code / folder), None)(frame("sub/train.py"))
    assert source is not None and source.place == "sub/train.py:4 in load"
    assert [number for number, _ in source.lines] == [3, 4, 5]
    assert source.lines[1][1] == "    raise ValueError('bad')"


def test_only_files_of_the_run_that_have_not_changed_since_are_shown(code: Path) -> None:
    os.utime(code / "sub" / "train.py", (1000.0, 1000.0))
    assert finder(RUN, str(code), 1001.0)(frame("sub/train.py")) is not None
    assert finder(RUN, str(code), 999.0)(frame("sub/train.py")) is None
    find = finder(RUN, str(code / "sub"), None)
    (code / "secret").write_text("x\n" * 9)
    for other in (frame("../secret"), frame("none.py"), frame("train.py", 99), 'File "/etc/passwd", line 1', "x"):
        assert find(other) is None, other
    assert finder(RUN, None, None)(frame("sub/train.py")) is None
    assert finder("20200101-000000-aaaa", str(code), None)(frame("sub/train.py")) is None


def test_the_card_of_a_failure_names_the_cause_the_place_and_the_fix(code: Path) -> None:
    evidence = (frame("sub/train.py"), "ValueError: bad")
    found = Finding("error", "script-exception", ("node-1",), "It failed.", "Fix it.", evidence, 1, None, "high")
    find_source = finder(RUN, str(code), None)
    plain = render_text(Diagnosis((found,), ()), 80, find_source=find_source)
    assert plain == [
        "first cause: script-exception, node-1, rank 1 (high confidence)",
        "  It failed.",
        "  | ValueError: bad",
        "  | sub/train.py:4 in load",
        "  |   3  def load():",
        "  | > 4      raise ValueError('bad')",
        "  |   5  ",
        "  fix: Fix it.",
    ]
    coloured = render_text(Diagnosis((found,), ()), 80, colour=True, find_source=find_source)
    assert coloured[0] == f"\x1b[1;31m{plain[0]}\x1b[0m"
    assert [line for line in coloured if "\x1b[1m" in line] == [
        f"\x1b[1m{plain[2]}\x1b[0m",
        f"\x1b[1m{plain[5]}\x1b[0m",
    ]
