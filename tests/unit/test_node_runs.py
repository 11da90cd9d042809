"""Records of runs that are damaged, or of another version: what is whole is shown all the same, and can be ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import decode
from orchestrator.answers.finished import Finished
from orchestrator.node.host import state
from orchestrator.node.serve import runs, stop
from orchestrator.node.serve.leftovers import stale
from orchestrator.node.serve.retire import look, tidy

WHOLE, DAMAGED = "20260101-000000-0001", "20260101-000000-0002"
SPEC = {
    "name": "mine", "created_at": "2026-01-01T00:00:00Z", "by": "ann@laptop", "command": ["python", "train.py"],
    "node": 0, "host": "a", "nodes": [{"host": "a", "nproc": 1, "spare": False}], "nproc": 1, "inventory": "i.yaml",
    "used_ports": [], "grace": 30.0, "gpu_ids": [],
}  # fmt: skip
RECORDS: dict[str, dict[str, Any]] = {
    "spec.json": SPEC,
    "state.json": {
        "failures": [], "attempt": 1, "guard": [1, 1], "boot_id": state.boot_id(), "node_rank": 0, "first_rank": 0,
        "phase": "running",
    },
    "exit.json": {"at": 1.0, "failures": [], "verdict": {"state": "succeeded"}, "outcome": {"ok": True, "ended": []}},
    "procs.json": {"boot_id": state.boot_id(), "processes": []},
}  # fmt: skip


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the second of two runs."""
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    for run_id in (WHOLE, DAMAGED):
        folder = Path(state.run_folder(run_id))
        folder.mkdir()
        for name, record in RECORDS.items():
            state.write(str(folder / name), record)
    return folder


def test_a_run_whose_id_no_controller_takes_hides_no_other_run(damaged: Path) -> None:
    damaged.rename(damaged.with_name("check-0a1b2c3d"))
    assert [run["run_id"] for run in runs.listing({})["runs"]] == [WHOLE]


def test_the_space_of_a_run_is_that_of_its_folder_and_of_its_outputs(damaged: Path) -> None:
    assert "size" not in runs.listing({})["runs"][1]
    (damaged / "journal").write_bytes(bytes(1_000_000))
    size = runs.listing({"sizes": True})["runs"][1]["size"]
    assert 1_000_000 <= size["record"] < 1_200_000 and size["outputs"] is None
    output = Path(state.output_folder(str(damaged), RECORDS["spec.json"]))
    output.mkdir(parents=True)
    (output / "step-1.pt").write_bytes(bytes(3_000_000))
    size = runs.listing({"sizes": True})["runs"][1]["size"]
    assert size["record"] < 1_200_000 and 3_000_000 <= size["outputs"] < 3_200_000


@pytest.mark.parametrize(
    ("spare", "now", "shown"),
    [
        (True, {"phase": "prepared", "node_rank": None, "attempt": 0}, "waiting"),
        (False, {"phase": "prepared", "node_rank": None, "attempt": 0}, "starting"),
        (False, {"phase": "exited", "node_rank": None, "attempt": 2}, "waiting"),  # it has come back
        (False, {"phase": "exited", "node_rank": 1, "attempt": 2}, "waiting"),
        (True, {"phase": "running", "node_rank": 1, "attempt": 2}, "running"),
    ],
)
def test_a_host_without_ranks_waits(spare: bool, now: dict[str, Any], shown: str) -> None:
    assert runs._state_here({"node": 0, "nodes": [{"host": "a", "spare": spare}]}, now) == shown


def test_a_host_that_was_added_waits_for_the_next_attempt() -> None:
    spec = {"node": 1, "nodes": [{"host": "a", "spare": False}]}
    assert runs._state_here(spec, {"phase": "prepared", "node_rank": None, "attempt": 0}) == "waiting"


def damages(record: dict[str, Any]) -> list[str]:
    wrong = (None, [7], {})
    return [
        "",
        "{}",
        "[]",
        "[" * 100_000,
        *(json.dumps({**record, key: one}) for key in record for one in wrong),
        *(json.dumps({name: one for name, one in record.items() if name != key}) for key in record),
    ]


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_hides_no_other_run_and_keeps_its_own_from_no_end(damaged: Path, name: str) -> None:
    for text in damages(RECORDS[name]):
        (damaged / name).write_text(text)
        listed = [run["run_id"] for run in runs.listing({})["runs"]]
        assert WHOLE in listed, text[:200]
        runs.record({"run_id": DAMAGED})
        assert stop.end_run({"run_id": DAMAGED, "grace": None, "by": "the test"})["remaining"] == [], text[:200]
        assert stale({"ports": []})["remaining"] == [], text[:200]
        keep = {"runs": 10, "days": 10**6}
        decode(Finished, look(keep, [DAMAGED]), "finished")
        tidy(keep, str(damaged.parent))
        assert damaged.exists()
