"""What of a folder arrives on a host, and what `up` says of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = "import os; print('has', sorted(os.path.relpath(os.path.join(f, n)) for f, _, ns in os.walk('.') for n in ns))"


def up(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder.parent),
        "DDP_ORCH_STATE_DIR": str(folder.parent / "state"),
        "XDG_STATE_HOME": str(folder.parent / "local"),
    }
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "up", *argv, "--", "train.py"],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def project(tmp_path: Path, run: str = "") -> Path:
    folder = tmp_path / "project"
    for name in (".env", "certs/tls.key", "data/set/prepare.py", "data/set/train.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "weights").write_bytes(bytes(11_000_000))
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n"
    (folder / "inventory.yaml").write_text(f"{hosts}run: {{launcher: direct{run}}}\n")
    return folder


def test_credentials_stay_here_and_the_code_line_says_so(tmp_path: Path) -> None:
    done = up(project(tmp_path), "--skip-check")
    assert done.returncode == 0, done.stderr
    sent = [".gitignore", "data/set/prepare.py", "inventory.yaml", "train.py", "weights"]
    assert f"has {sent}" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if "code: " in line]
    assert line.startswith("- code: 5 files, 11.0 MB, ")
    assert "; largest: weights 11.0 MB, " in line
    assert line.endswith("secrets): .env, certs/tls.key")
    assert re.search(r"^- .*\.gitignore\b.*: data/set/train\.bin$", done.stderr, re.MULTILINE)


def test_what_sync_names_arrives_beside_the_code(tmp_path: Path) -> None:
    done = up(project(tmp_path, ", sync: [auto, .env, data/set/train.bin]"), "--skip-check")
    assert done.returncode == 0, done.stderr
    sent = [".env", ".gitignore", "data/set/prepare.py", "data/set/train.bin", "inventory.yaml", "train.py", "weights"]
    assert f"has {sent}" in done.stdout
    assert "secrets): certs/tls.key\n" in done.stderr and ".gitignore" not in done.stderr


def test_a_folder_of_which_sync_sends_a_file_is_not_called_unsent(tmp_path: Path) -> None:
    folder = project(tmp_path, ", sync: [auto, data/set/train.bin]")
    (folder / ".gitignore").write_text("data/\n")
    assert ".gitignore" not in up(folder, "--dry-run").stdout
    (folder / "inventory.yaml").write_text(f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\n")
    assert re.search(r"\.gitignore\b.*: data/$", up(folder, "--dry-run").stdout, re.MULTILINE)


def test_a_dry_run_says_what_would_stay_here(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "out").symlink_to("/etc/hostname")
    done = up(folder, "--dry-run")
    assert "  5 files, 11.0 MB, from " in done.stdout
    assert "secrets): .env, certs/tls.key\n" in done.stdout
    assert re.search(r"^  .*\.gitignore\b.*: data/set/train\.bin$", done.stdout, re.MULTILINE)
    assert re.search(r"^warning: \S*\bout .* /etc/hostname\b", done.stderr, re.MULTILINE)
