"""Flight-recorder dumps: read without trust, and judged."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import decode
from orchestrator.answers.evidence import DumpSummary
from orchestrator.diagnosis import dumps
from orchestrator.diagnosis.dumps import Dump
from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.record import RunRecord
from orchestrator.diagnosis.transcript import LogLine
from orchestrator.node.serve import flight
from orchestrator.runs.diagnose import dump_of


def entry(seq: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    """As torch 2.4 and later write it (torch/csrc/distributed/c10d/FlightRecorder.hpp)."""
    known = {
        "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[1024]], "input_dtypes": ["Float"], "state": state,
        "retired": state == "completed", "is_p2p": False, "timeout_ms": 600000,
        "frames": [{"name": "step", "filename": "/home/ann/train.py", "line": 71}],
    }  # fmt: skip
    return known | more


def dump(folder: Path, rank: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps({"version": "2.4", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": entries}))
    return flight.summary(str(path))


def decoded(summaries: list[dict[str, Any]]) -> list[Dump]:
    return [dump_of(decode(DumpSummary, summary, "dump")) for summary in summaries]


def test_a_rank_that_never_joined_a_collective_is_named(tmp_path: Path) -> None:
    told = [
        dump(tmp_path, 0, [entry(7), entry(8, "scheduled")]),
        dump(tmp_path, 1, [entry(7)]),
        dump(tmp_path, 2, [entry(7), entry(8, "started")]),
    ]
    judged = dumps.find_hang_cause(decoded(told))
    assert judged is not None
    assert (judged.code, judged.rank) == ("collective-timeout", 1)
    assert "never joined collective 8 (nccl:all_reduce)" in judged.why
    assert "train.py:71" in judged.evidence[0]


def test_ranks_in_different_collectives_are_a_mismatch(tmp_path: Path) -> None:
    told = [
        dump(tmp_path, 0, [entry(8, "started")]),
        dump(tmp_path, 1, [entry(8, "started", profiling_name="nccl:broadcast", input_sizes=[[3]])]),
        dump(tmp_path, 2, [entry(8, "started")]),
    ]
    judged = dumps.find_hang_cause(decoded(told))
    assert judged is not None
    assert (judged.code, judged.rank) == ("collective-mismatch", 1)


def test_dumps_decide_where_the_output_is_silent(tmp_path: Path) -> None:
    told = [dump(tmp_path, 0, [entry(8, "started")]), dump(tmp_path, 1, [entry(7)])]
    line = LogLine(0, "a", "a", 0, 1.7e9, "step 7")
    first = diagnose([line], RunRecord(hosts=("a", "b"), ranks={0: "a", 1: "b"}, dumps=decoded(told))).findings[0]
    assert (first.code, first.rank, first.hosts) == ("collective-timeout", 1, ("b",))


def test_all_ranks_completed_is_no_finding(tmp_path: Path) -> None:
    assert dumps.find_hang_cause(decoded([dump(tmp_path, rank, [entry(8)]) for rank in (0, 1)])) is None


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/owned",)


@pytest.mark.parametrize("what", [Evil(), {"entries": [Evil()]}, {"entries": [{"state": os.path.join}]}])
def test_a_dump_with_any_global_in_it_is_refused(tmp_path: Path, what: Any) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(what))
    with pytest.raises(pickle.UnpicklingError, match="holds no"):
        flight.summary(str(path))


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"no pickle", pickle.dumps([1]), pickle.dumps({"entries": 3})])
def test_what_is_no_dump_is_an_error_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        flight.summary(str(path))


def test_a_dump_is_read_up_to_a_size_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MOST", 100)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        dump(tmp_path, 0, [entry(number) for number in range(10)])


def test_a_link_in_the_place_of_a_dump_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret_1").write_bytes(pickle.dumps({"entries": []}))
    (tmp_path / "nccl_trace_rank_0").symlink_to(tmp_path / "secret_1")
    with pytest.raises(OSError, match="symbolic"):
        flight.summary(str(tmp_path / "nccl_trace_rank_0"))


def test_dumps_are_summarised_by_a_process_of_its_own(tmp_path: Path) -> None:
    told = [dump(tmp_path, 0, [entry(8, "started")]), dump(tmp_path, 1, [entry(7)])]
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"no pickle")
    assert flight.summaries([str(path) for path in sorted(tmp_path.iterdir())]) == told
    assert flight.summaries([]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_dump_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    dump(tmp_path, 0, [entry(8)])
    path = tmp_path / "nccl_trace_rank_0"
    os.chown(path, 65534, 65534)
    with pytest.raises(ValueError):
        flight.summary(str(path))
    os.chown(path, os.geteuid(), os.getegid())
    assert flight.summary(str(path))


def test_a_dump_that_unfolds_to_more_than_any_memory_is_cut_short_or_passed_over(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(14):
        nested = [nested] * 100
    small = dump(tmp_path, 0, [entry(8, "started", input_sizes=nested, profiling_name=nested, frames=[nested] * 5)])
    assert len(str(small)) < 2000
    # 48 MiB that are lists of 56 bytes each
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x02" + b"]" * (48 << 20) + b".")
    assert flight.summaries([str(tmp_path / "nccl_trace_rank_1"), str(tmp_path / "nccl_trace_rank_0")]) == [small]
