"""Old names of options, keys and flags work as the new ones do, with one line on stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from orchestrator.cli import cli
from orchestrator.commands.context import load_inventory
from trainer.config import OLD_FLAGS, parse

ROOT = Path(__file__).parents[2]

OPTIONS = [
    ("kill", ["--stale"], ["--leftovers"]),
    ("bench", ["--fixed"], ["--strong-scaling"]),
    ("logs", ["--hosts", "gpu1"], ["--host", "gpu1"]),
    ("logs", ["--host", "gpu1", "--hosts=gpu2", "--hosts=gpu3"], ["--host=gpu1", "--host=gpu2", "--host=gpu3"]),
]
KEYS = ["hosts: [gpu1]\nrun: {keep: {journal: 1GiB}}\n", "hosts: [gpu1]\nrun: {keep: {log_size: 1GiB}}\n"]


def orch(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("argv", "suggested", "old"),
    [
        (["kill", "--stal"], "--leftovers", "--stale"),
        (["bench", "--fixd"], "--strong-scaling", "--fixed"),
        (["logs", "--hostss", "gpu1"], "--host", "--hosts"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_mistyped_old_option_is_corrected_to_that_of_today(
    tmp_path: Path, argv: list[str], suggested: str, old: str
) -> None:
    result = orch(tmp_path, *argv)
    assert result.returncode == 2
    words = re.findall(r"--[a-z-]+", result.stderr.partition("\n")[0])
    assert suggested in words and old not in words


@pytest.mark.parametrize(("name", "old", "new"), OPTIONS, ids=lambda value: " ".join(value) if value else "")
def test_an_old_option_works_and_says_once_what_to_use(
    name: str, old: list[str], new: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    params = command(name).make_context(name, list(old)).params
    words = {word.partition("=")[0] for word in old} - {word.partition("=")[0] for word in new} - {"gpu1"}
    option = new[0].partition("=")[0]
    assert re.fullmatch(rf"warning: {words.pop()} .* {option}\n", capsys.readouterr().err)
    assert params == command(name).make_context(name, list(new)).params
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("name", "old", "new"), OPTIONS[:3], ids=lambda value: " ".join(value) if value else "")
def test_help_shows_the_new_option_only(name: str, old: list[str], new: list[str]) -> None:
    text = command(name).get_help(click.Context(command(name), info_name=name))
    assert f"  {new[0]} " in text and f"{old[0]} " not in text


def test_an_old_key_works_and_says_once_what_to_use(tmp_path: Path) -> None:
    shown = []
    for text in KEYS:
        (tmp_path / "inventory.yaml").write_text(text)
        shown.append(orch(tmp_path, "config"))
    assert shown[0].stdout == shown[1].stdout and "log_size: 1GiB" in shown[0].stdout
    assert re.fullmatch(r"warning: inventory\.yaml:2: run\.keep\.journal .*\blog_size\n", shown[0].stderr)
    assert shown[1].stderr == ""


def test_a_command_that_reads_an_inventory_twice_says_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(KEYS[0])
    for _ in range(2):  # two commands
        with click.Context(cli):
            load_inventory(str(path))
            load_inventory(str(path))
    assert capsys.readouterr().err.count("run.keep.journal is deprecated") == 2


@pytest.mark.parametrize("keys", ["journal: 1GiB, log_size: 2GiB", "log_size: 2GiB, journal: 1GiB"])
def test_a_key_under_both_names_is_an_error(tmp_path: Path, keys: str) -> None:
    (tmp_path / "inventory.yaml").write_text(f"hosts: [gpu1]\nrun: {{keep: {{{keys}}}}}\n")
    done = orch(tmp_path, "config")
    assert done.returncode == 2
    assert re.search(r"\binventory\.yaml:2: .*\bjournal\b.*\blog_size\b", done.stderr)


@pytest.mark.parametrize("old", OLD_FLAGS)
def test_an_old_flag_of_the_trainer_works(old: str) -> None:
    value = [] if old == "--checkpoint" else ["2" if old == "--accumulate" else "0.5"]
    assert parse([old, *value]) == parse([OLD_FLAGS[old], *value]) != parse([])
    if value:
        assert parse([f"{old}={value[0]}"]) == parse([old, *value])


def test_up_gives_the_trainer_its_new_flags_and_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [gpu1, gpu2]\nrun: {args: [--clip=1]}\n")
    done = orch(tmp_path, "up", "--dry-run", "--json", "--", "--accumulate", "2", "--clip=2")
    for node in json.loads(done.stdout)["nodes"]:
        assert node["command"][-4:] == ["--grad-clip=1", "--grad-accum-steps", "2", "--grad-clip=2"]
    accumulate, clip = sorted(done.stderr.splitlines())
    assert re.fullmatch(r"warning: --accumulate .* --grad-accum-steps", accumulate)
    assert re.fullmatch(r"warning: --clip .* --grad-clip", clip)


def test_the_trainer_by_itself_says_it_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")
    argv = [sys.executable, "-m", "trainer", "--warm-up=0.1", "--epochs=0", f"--out={tmp_path}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"trainer: --warm-up .* --warmup-fraction\n", done.stderr)
