"""Whatever a user gets wrong before a run starts: one message (where, what, how to mend it), the exit code, no more.

Each case has its golden text: the exit code and every word on stderr. With UPDATE_GOLDEN=1 in the environment they are
written anew; the diff is to be read.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import golden_files
import pytest

from orchestrator.cli import cli, guarded

from .broken_inputs import CASES, TWO, Case

GOLDEN = Path(__file__).parents[1] / "golden" / "broken"
INVENTORIES = sorted((GOLDEN.parent / "inventory").glob("*.error"))


def same_as(name: str, found: str) -> None:
    golden_files.same_as(GOLDEN / f"{name}.txt", found)


def told(argv: tuple[str, ...], code: int, stderr: str) -> str:
    """A golden text."""
    shown = [one if len(one) < 80 else f"{one[:20]}...({len(one)} characters)" for one in argv[:8]]
    return f"$ ddp-orch {shlex.join(shown)}\n{stderr}exit code {code}\n".replace("\x1b", "\\x1b")


def in_process(argv: tuple[str, ...]) -> tuple[int, str, str]:
    """The program without the start of a Python: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(lambda: cli(list(argv), prog_name="ddp-orch", standalone_mode=False))
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an inventory and a script, in a home of its own; nobody at the terminal."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(TWO)
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(folder)
    for name in ("DDP_ORCH_INVENTORY", "DDP_ORCH_SSH_CONFIG", "SSH_AUTH_SOCK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_command_line_is_said_in_one_message_and_nothing_is_done(
    here: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    for name, content in case.files.items():
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    if case.make:
        case.make(here)
    before = {path: path.lstat().st_mtime_ns for path in here.parent.rglob("*")}
    monkeypatch.setattr("orchestrator.ssh.dialer.Dialer.connect", lambda *_: pytest.fail("a host was reached for"))
    code, stdout, stderr = in_process(case.argv)
    assert (code, stdout) == (case.code, ""), stderr
    assert "Traceback" not in stderr and len(stderr) < 1500
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", stderr) is None
    assert {path: path.lstat().st_mtime_ns for path in here.parent.rglob("*")} == before
    same_as(case.name, told(case.argv, code, stderr.replace(str(here.parent), "HOME")))


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["config", "up"])
def test_a_broken_inventory_is_2_and_its_message_and_no_more(here: Path, path: Path, command: str) -> None:
    (here / "inventory.yaml").write_bytes(path.with_suffix(".yaml").read_bytes())
    code, stdout, stderr = in_process((command, "inventory.yaml"))
    assert (code, stdout) == (2, "")
    assert stderr == f"error: {path.read_text()}"


def test_there_are_no_golden_texts_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {case.name for case in CASES}
