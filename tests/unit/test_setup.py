"""How `setup` installs: one at a time in a venv, and what is said when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from golden_files import assert_message

from orchestrator.commands import setup
from orchestrator.commands.setup import SetupOptions
from orchestrator.errors import UsageError

SCRIPT = "echo begin >> log; while [ ! -e go ]; do sleep 0.01; done; echo end >> log"


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} never had {text!r}"
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who waits for a lock")
def test_hosts_that_share_a_home_install_one_after_the_other(tmp_path: Path) -> None:
    argv = setup.lock_venv(sys.executable, str(tmp_path / "share" / "venv"), ["sh", "-c", SCRIPT])
    with subprocess.Popen(argv, cwd=tmp_path) as first:
        wait_for(tmp_path / "log", "begin")
        with subprocess.Popen(argv, cwd=tmp_path) as second:
            wait_for(Path("/proc/locks"), f"-> FLOCK  ADVISORY  WRITE {second.pid} ")
            (tmp_path / "go").touch()
            assert (first.wait(30), second.wait(30)) == (0, 0)
    assert (tmp_path / "log").read_text().split() == ["begin", "end", "begin", "end"]


def test_the_exit_code_of_an_installation_is_its_own(tmp_path: Path) -> None:
    argv = setup.lock_venv(sys.executable, str(tmp_path / "venv"), ["sh", "-c", "exit 7"])
    assert subprocess.run(argv).returncode == 7


def test_an_index_that_is_not_reached_is_named_as_the_cause(tmp_path: Path) -> None:
    """What pip says of a port that nobody listens on."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1"]
    done = subprocess.run(
        [*pip, "--index-url", "https://127.0.0.1:9", "torch"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode
    said = setup.explain_failure("torch==2.9.0", done.stderr, done.returncode)
    assert_message("setup-index-not-reached", said)


def test_other_failures_are_told_in_the_words_of_pip() -> None:
    text = "WARNING: old\nERROR: No matching distribution found for torch==9.9.9\n[notice] update pip\n"
    said = setup.explain_failure("torch==9.9.9", text, 1)
    assert said == text.splitlines()[1]
    assert setup.explain_failure("torch", "", 137) == "exit code 137"


@pytest.mark.parametrize(
    "wanted", [SetupOptions(None, None, "wheels"), SetupOptions(None, "https://example.org", "/wheels")]
)
def test_a_folder_of_wheels_is_a_path_on_the_hosts_and_no_index_beside_it(wanted: SetupOptions) -> None:
    with pytest.raises(UsageError, match="--wheels"):
        setup.setup(None, None, wanted)
