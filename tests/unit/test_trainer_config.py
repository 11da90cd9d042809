"""Flags of the trainer from files, and the flags that shape a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config import ConfigError, expand_files, parse

ROOT = Path(__file__).parents[2]

YAML = """
# a comment
batch_size: 64
lr: 1.0e-3
optimizer: adamw
betas: [0.9, 0.99]
compile: true
augment: false
"""
JSON = '{"batch_size": 64, "lr": 1e-3, "optimizer": "adamw", "betas": [0.9, 0.99], "compile": true, "augment": false}'
TOML = 'batch-size = 64\nlr = 1e-3\noptimizer = "adamw"\nbetas = [0.9, 0.99]\ncompile = true\naugment = false\n'


@pytest.mark.parametrize("name", ["train.yaml", "train.toml", "train.json"])
def test_flags_of_the_command_line_win_over_those_of_a_file(tmp_path: Path, name: str) -> None:
    if name.endswith("toml"):
        pytest.importorskip("tomllib", reason="tomllib is part of Python since 3.11")
    file = tmp_path / name
    file.write_text({"yaml": YAML, "toml": TOML, "json": JSON}[name.partition(".")[2]])
    config = parse(["--batch-size=32", f"--config={file}", "--no-compile"])
    assert (config.batch_size, config.lr, config.optimizer, config.beta_values) == (32, 1e-3, "adamw", (0.9, 0.99))
    assert not config.compile and not config.augment
    assert parse(["--config", str(file)]).compile


def test_a_file_is_relative_to_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("epochs: 3\n")
    assert expand_files(["--config", "train.yaml", "--lr=1"], tmp_path) == ["--epochs=3", "--lr=1"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("epoch: 3", "'epochs'"),
        ("epochs: {a: 1}", "epochs: expected a value"),
        ("- 1", "expected lines of"),
        ("epochs: [", "train.yaml: "),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, content: str | None, part: str) -> None:
    file = tmp_path / "train.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        parse([f"--config={file}"])
    assert part in str(refused.value) and str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_up_sends_the_flags_of_a_file_and_not_the_file(tmp_path: Path) -> None:
    """The file in run.args is beside the inventory, one after `--` in the working directory."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "base.yaml").write_text("epochs: 3\nlr: 0.2\n")
    (tmp_path / "elsewhere/mine.yaml").write_text("lr: 0.3\n")
    (tmp_path / "inventory.yaml").write_text("hosts: [gpu1]\nrun: {args: [--config=base.yaml]}\n")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", "up", "-i", "../inventory.yaml", "--dry-run", "--json", "--",
         "--config", "mine.yaml", "--seed=1"],
        cwd=tmp_path / "elsewhere", env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["command"][-4:] == ["--epochs=3", "--lr=0.2", "--lr=0.3", "--seed=1"]
