"""`doctor` on this machine: the archive has what a bug report needs, and no credential."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .local import orch

SECRET, TOKEN, WEBHOOK = "correct-horse-battery", "staple-of-the-horse", "https://127.0.0.1:9/hook"
ON_COMMAND_LINE = "hf_of-the-command-line"
INVENTORY = f"""
hosts: [{{name: me, address: localhost, python: {sys.executable}}}]
run: {{launcher: direct, secrets: [MY_SECRET], env: {{API_TOKEN: {TOKEN}, PLAIN: shown}}}}
notify: {{webhook: "{WEBHOOK}"}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    orch(tmp_path, "kill", "--all", "--grace", "0")


@pytest.mark.timeout(120)
def test_the_archive_of_a_failed_run_has_its_cause_and_no_credential(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    (folder / "inventory.yaml").write_text(INVENTORY)
    (folder / "train.py").write_text(
        "import os, sys\nprint(os.environ['MY_SECRET'], sys.argv, flush=True)\nraise KeyError('lr')\n"
    )
    assert orch(folder, "up", "--skip-check", "--", "train.py", "--hf-token", ON_COMMAND_LINE).returncode == 1
    done = orch(folder, "doctor", "-o", "bug.tar.gz")
    assert done.returncode == 0, done.stderr
    path = folder / "bug.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        parts = {Path(entry.name).name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]
    assert "KeyError: 'lr'" in parts["diagnose.txt"] and "KeyError: 'lr'" in parts["stderr.log"]
    assert "exit code 1" in parts["events.txt"]
    assert json.loads(parts["inventory.json"])["run"]["env"] == {"API_TOKEN": "***", "PLAIN": "shown"}
    everything = "".join(parts.values())
    assert not any(value in everything for value in (SECRET, TOKEN, WEBHOOK, ON_COMMAND_LINE))
    assert "--hf-token" in everything


@pytest.mark.timeout(120)
def test_values_that_a_script_prints_are_masked_if_their_names_look_like_credentials(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a secret that cannot be masked, because it is not set here, is named before anybody shares the archive."""
    (folder / "inventory.yaml").write_text(INVENTORY.replace("PLAIN: shown", f'PLAIN: "pg://ann:{SECRET}@db/x"'))
    (folder / "train.py").write_text(
        "import os\nprint(os.environ['API_TOKEN'], os.environ['PLAIN'], flush=True)\nraise KeyError('lr')\n"
    )
    monkeypatch.setenv("OTHER_SECRET", "of-this-run-only")
    assert orch(folder, "up", "--skip-check", "--set", "run.secrets=[OTHER_SECRET]", "--", "train.py").returncode == 1
    monkeypatch.delenv("OTHER_SECRET")
    done = orch(folder, "doctor", "-o", "bug.tar.gz")
    assert done.returncode == 0 and "OTHER_SECRET" in done.stderr, done.stderr
    with tarfile.open(folder / "bug.tar.gz") as archive:
        everything = b"".join(archive.extractfile(entry).read() for entry in archive).decode()  # type: ignore[union-attr]
    assert "pg://ann:***@db/x" in everything
    assert not any(value in everything for value in (SECRET, TOKEN, WEBHOOK))


def test_an_archive_is_never_overwritten(folder: Path) -> None:
    (folder / "inventory.yaml").write_text(INVENTORY)
    (folder / "bug.tar.gz").write_text("mine")
    assert orch(folder, "doctor", "-o", "bug.tar.gz").returncode == 2
    assert (folder / "bug.tar.gz").read_text() == "mine"
