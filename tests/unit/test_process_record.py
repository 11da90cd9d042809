"""The record of the processes of a run, from which a sweep finds them after its guard was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from orchestrator.node.guard.process_record import ProcessRecord
from orchestrator.node.host.processes import Process
from orchestrator.node.ranks.tree import Tree


class StandInTree:
    def __init__(self, members: set[Process]) -> None:
        self.known = members
        self.registered: list[tuple[int, Process]] = []

    def members(self) -> set[Process]:
        return self.known

    def ranks(self) -> list[tuple[int, Process]]:
        return self.registered


def update(record: ProcessRecord, tree: StandInTree) -> None:
    record.update(cast(Tree, tree))


def read(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(path.read_text()))


def test_a_rank_that_registers_later_is_recorded_though_no_process_is_new(tmp_path: Path) -> None:
    record, tree = ProcessRecord(str(tmp_path / "procs.json")), StandInTree({Process(7, 70)})
    update(record, tree)
    assert read(tmp_path / "procs.json")["ranks"] == []
    tree.registered = [(3, Process(7, 70))]
    update(record, tree)
    assert read(tmp_path / "procs.json")["ranks"] == [[7, 3]]


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "procs.json"
    record, tree = ProcessRecord(str(path)), StandInTree({Process(7, 70)})
    update(record, tree)
    path.parent.mkdir()
    update(record, tree)
    assert read(path)["processes"] == [[7, 70]]
