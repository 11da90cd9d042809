"""Which outputs `prune --outputs` deletes, and what it says of the others."""

from __future__ import annotations

import pytest
from fake_relay import part_of
from golden_files import assert_message

from orchestrator.commands.prune import Folder, choose, find_folder, table
from orchestrator.errors import UsageError
from orchestrator.runs.registry import Run

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
    assert_message("prune-kept", "\n".join(said))


def test_named_outputs_are_chosen_by_name_only() -> None:
    assert [one.name for one in choose(FOLDERS, ["mine"], "lab.yaml")[0]] == ["mine"]
    chosen, said = choose(FOLDERS, [RUNNING], "lab.yaml")
    assert chosen == [] and len(said) == 1 and RUNNING in said[0]


def test_the_table_has_run_host_size_and_age() -> None:
    lines = table(choose(FOLDERS, (), "lab.yaml")[0]).splitlines()
    assert lines[0].split() == ["RUN", "HOST", "SIZE", "LAST", "WRITTEN"]
    assert lines[1].split() == [OLD, "b", "3.0", "MB", "41", "days", "ago"]
    assert lines[3].endswith("just now")


def run(run_id: str, name: str | None = None, shared: str | None = None) -> Run:
    return Run(run_id, name or run_id, "succeeded", 1, "", {"a": part_of(shared_output=shared)})


def test_outputs_are_found_by_the_id_of_their_run_or_a_part_of_it() -> None:
    folders = {"mine", OLD, RUNNING}
    known = [run(NEW, "mine"), run(RUNNING)]
    assert find_folder("mine", folders, known) == find_folder(NEW, folders, known) == "mine"
    assert find_folder("20260102", folders, known) == "mine"
    assert find_folder("20260101", folders, known) == find_folder(OLD, folders, []) == OLD  # its record is gone
    with pytest.raises(UsageError, match=f"{OLD}, {NEW}, {RUNNING}"):
        find_folder("abcd", folders, known)
    for unknown in ("other", "", "2025"):
        with pytest.raises(UsageError, match=f"^--run {unknown}: ") as refused:
            find_folder(unknown, folders, known)
        assert not any(folder in str(refused.value) for folder in folders)


def test_outputs_on_a_shared_disk_are_named_and_not_deleted() -> None:
    known = [run(NEW, "mine", "/shared/mine")]
    for wanted in (NEW, "2026"):
        with pytest.raises(UsageError, match=r" /shared/mine \(run\.output\)"):
            find_folder(wanted, {"mine"}, known)
    with pytest.raises(UsageError, match="/shared/mine"):
        find_folder("mine", set(), known)
