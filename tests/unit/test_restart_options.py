"""The options of a run that `restart` starts again, and those that `restart` adds to them."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import variables
from orchestrator.commands.restart_options import Added, combine
from orchestrator.commands.up_options import UpOptions
from orchestrator.errors import UsageError
from orchestrator.inventory import model
from orchestrator.plan.plan import make
from orchestrator.runs import recent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my.env").write_text("LR=0.05\nSEED=1\n")
    (tmp_path / "new.env").write_text("LR=3\n")
    return tmp_path


def started(**options: Any) -> UpOptions:
    return UpOptions(inventory="i.yaml", script=("train.py",), **options)


def variables_of(options: UpOptions, folder: Path) -> dict[str, str]:
    """As the ranks would have them."""
    inventory = model.parse("hosts: [a]\n", "i.yaml", options.settings)
    files = [str(folder / file) for file in options.env_file]
    return {**inventory.run.env, **variables.read(inventory, files, options.env)}


@pytest.mark.parametrize(
    ("before", "added", "expected"),
    [
        ({"env_file": ("my.env",)}, {"settings": ("run.env.LR=9",)}, "9"),
        ({"env": ("LR=1",)}, {"settings": ("run.env.LR='9'",)}, "9"),
        ({"env": ("LR=1",), "env_file": ("my.env",)}, {"env": ("LR=9",)}, "9"),
        ({"env": ("LR=1",)}, {"env_file": ("new.env",)}, "3"),
        ({"env_file": ("new.env", "my.env")}, {"env_file": ("new.env",)}, "3"),
        ({"settings": ("run.env.LR=1",)}, {"env": ("LR=9",)}, "9"),
        ({"settings": ("run.env={LR: 1}",)}, {"env": ("LR=9",)}, "9"),
        ({"settings": ("run.env.LR=1",)}, {"settings": ("run.env.LR=9",)}, "9"),
        ({}, {"settings": ("run.env.LR=9",)}, "9"),
    ],
)
def test_what_restart_adds_wins_over_what_the_run_had(
    folder: Path, before: dict[str, Any], added: dict[str, Any], expected: str
) -> None:
    again = combine(started(**before), str(folder), Added(**added), here=folder)
    assert variables_of(again, folder)["LR"] == expected


def test_other_variables_of_the_run_stay(folder: Path) -> None:
    before = started(env_file=("my.env",), env=("A=1", "B=1"))
    again = combine(before, str(folder), Added(env=("A=2",), settings=("run.env.LR=9",)), here=folder)
    assert variables_of(again, folder) == {"A": "2", "B": "1", "LR": "9", "SEED": "1"}


def test_a_repeated_restart_keeps_one_option_of_each_key(folder: Path) -> None:
    added = Added(settings=("run.env.LR=9", "run.grace=1"), env=("A=1",), env_file=("new.env",))
    once = combine(started(), str(folder), Added(settings=("run.env.LR=9",), env=("A=1",)), here=folder)
    for _ in range(2):
        once = combine(once, str(folder), Added(settings=("run.grace=1",), env=("A=2",)), here=folder)
    assert once.settings == ("run.env.LR=9", "run.grace=1") and once.env == ("A=2",)
    with pytest.raises(UsageError, match="LR"):  # one command gives it twice
        combine(started(), str(folder), added, here=folder)


def test_a_file_is_found_from_the_folder_of_the_restart(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "late.env").write_text("LR=7\n")
    again = combine(started(env_file=("my.env",)), str(folder), Added(env_file=("late.env",)), here=other)
    assert variables_of(again, folder)["LR"] == "7" and again.env_file[0] == "my.env"


@pytest.mark.parametrize("setting", ["run.env={LR: 9}", "run.env.LR=null"])
def test_a_setting_that_could_not_win_is_refused_with_the_option_that_does(folder: Path, setting: str) -> None:
    with pytest.raises(UsageError, match="-e LR="):
        combine(started(env_file=("my.env",)), str(folder), Added(settings=(setting,)), here=folder)


@pytest.mark.parametrize("setting", ["run.env.LR=2", "run.env={LR: 2}"])
@pytest.mark.parametrize("given", [{"pairs": ("LR=1",)}, {"files": ("my.env",)}])
def test_a_variable_that_one_command_sets_in_two_ways_is_refused(
    folder: Path, setting: str, given: dict[str, Any]
) -> None:
    files = [str(folder / file) for file in given.get("files", ())]
    with pytest.raises(UsageError, match="LR"):
        variables.check_settings([setting], files, given.get("pairs", ()))
    variables.check_settings(["run.env.OTHER=1", "run.grace=3"], files, given.get("pairs", ()))


def test_a_host_that_has_a_value_of_its_own_is_named() -> None:
    settings = ("run.env.LR=9",)
    inventory = model.parse("hosts: [{name: lovelace, env: {LR: 5}}, b]\n", "i.yaml", settings)

    def warn(**env: str) -> list[str]:
        plan = make(
            inventory, run_id="20261122-070000-abcd", name="n", command=("-u", "x.py"), code=None, env=env, debug=False
        )
        return variables.warn_of_host_values(plan, settings)

    (warned,) = warn()
    assert "lovelace" in warned and "-e LR=9" in warned
    assert not warn(LR="9")


def test_a_file_that_is_a_pipe_is_read_once_by_up_and_refused_by_restart(folder: Path) -> None:
    inventory, settings = model.parse("hosts: [a]\n", "i.yaml"), ["run.env.OTHER=1"]
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        pipe.write("LR=1\n")
    try:
        pipe_path = f"/dev/fd/{reader}"
        with pytest.raises(UsageError, match="regular"):
            combine(started(), str(folder), Added(env_file=(pipe_path,)), here=folder)
        assert variables.read(inventory, [pipe_path], (), settings) == {"LR": "1"}
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"env": ("A=1",)}, {"env": ("A=1", "B=2")}, " -e B=2"),
        ({"env_file": ("/a", "/b")}, {"env_file": ("/b", "/a")}, " --env-file /a"),
        ({"settings": ("k=1",)}, {"settings": ("k=2",)}, " --set k=2"),
        ({"env": ("A=1",)}, {"env": ("A=2",), "settings": ("k=1",)}, " -e A=2 --set k=1"),
    ],
)
def test_advice_to_restart_has_the_options_that_were_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], now: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_id = "20261122-070000-abcd"
    recent.remember("i.yaml", run_id, "mine")
    recent.remember_command(run_id, asdict(started(**before)))
    assert started(**now).command_to_restart(run_id, "i.yaml") == f"ddp-orch restart {run_id}{words} -i i.yaml"
