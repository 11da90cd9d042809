"""Which outputs `prune --outputs` deletes, and what it says of the others."""

from __future__ import annotations

from orchestrator.prune import Folder, choose, table

OLD, NEW, RUNNING = "20260101-120000-abcd", "20260102-120000-abcd", "20260103-120000-abcd"
FOLDERS = [
    Folder(NEW, "a", 1_000_000, 60.0, False),
    Folder(OLD, "a", 2_000_000, 40 * 86400.0, False),
    Folder(OLD, "b", 3_000_000, 41 * 86400.0, False),
    Folder(RUNNING, "a", 9_000_000, 1.0, True),
    Folder(RUNNING, "b", 9_000_000, 9000.0, False),  # its part there is over
    Folder("mine", "a", 4_000_000, 1.0, False),
]


def test_outputs_without_a_name_are_chosen_and_those_of_running_runs_never() -> None:
    chosen, said = choose(FOLDERS, (), "lab.yaml")
    assert [(one.name, one.host) for one in chosen] == [(OLD, "b"), (OLD, "a"), (NEW, "a")]
    assert said[0] == f"in use, not deleted: {RUNNING}"
    assert said[1].startswith("not deleted, as they have a name: mine (4.0 MB); ")
    assert said[1].endswith("ddp-orch prune lab.yaml --outputs --run mine")


def test_named_outputs_are_chosen_by_name_only() -> None:
    assert [one.name for one in choose(FOLDERS, ["mine"], "lab.yaml")[0]] == ["mine"]
    assert choose(FOLDERS, [RUNNING], "lab.yaml") == ([], [f"in use, not deleted: {RUNNING}"])


def test_the_table_has_run_host_size_and_age() -> None:
    lines = table(choose(FOLDERS, (), "lab.yaml")[0]).splitlines()
    assert lines[0].split() == ["RUN", "HOST", "SIZE", "LAST", "WRITTEN"]
    assert lines[1].split() == [OLD, "b", "3.0", "MB", "41", "days", "ago"]
    assert lines[3].endswith("just now")
