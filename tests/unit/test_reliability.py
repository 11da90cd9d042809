"""The ledger of a host, and which hosts stand out by what all ledgers hold."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import decode
from orchestrator.answers.ledger import EndedRun
from orchestrator.answers.runs import RunList
from orchestrator.checks.reliability import find_unreliable
from orchestrator.node.host import ledger, state
from orchestrator.node.ranks import rank_failure

RUN = "20260101-000000-{:04x}"


def spec(number: int, node: int = 0) -> dict[str, Any]:
    return {"run_id": RUN.format(number), "name": f"run-{number}", "node": node}


def record(*failures: dict[str, Any], at: float = 1000.0, outcome: str = "failed") -> dict[str, Any]:
    """As exit.json has it. The last failure ended the run, those before it an attempt each."""
    *earlier, last = failures or (None,)
    return {"at": at, "verdict": {"state": outcome, "first_failure": last, "failures": earlier, "attempt": 3}}


def failure(host: str, **fields: Any) -> dict[str, Any]:
    return {"host": host, "node": 1, "rank": None, "what": "host lost", "at": 999.0, "lost": True, **fields}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a run."""
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    return os.path.join(state.folder("runs"), RUN.format(0))


def path(folder: str) -> Path:
    return Path(state.home_of(folder)) / ledger.NAME


def test_every_run_that_ended_is_a_private_line_with_its_failures(folder: str) -> None:
    ledger.add(folder, record(outcome="succeeded", at=1.0), spec(1))
    ledger.add(folder, record(failure("b"), failure("c", attempt=2, what="x" * 999), at=2.0), spec(2))
    first, second = ledger.newest(20)
    assert (first["run_id"], first["state"], first["failures"]) == (RUN.format(1), "succeeded", [])
    assert [one["host"] for one in second["failures"]] == ["b", "c"]
    assert [one["attempt"] for one in second["failures"]] == [3, 2]
    assert len(second["failures"][1]["what"]) == ledger.TEXT
    assert path(folder).stat().st_mode & 0o777 == 0o600
    assert decode(RunList, {"runs": [], "ledger": [first, second]}, "list").ledger[1].failures[0].code == "host-lost"
    assert ledger.newest(1) == [second]


def test_the_ledger_stays_small_and_keeps_the_newest_lines(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST", 4000)
    for number in range(200):
        ledger.add(folder, record(failure("b"), at=float(number)), spec(number))
        assert path(folder).stat().st_size <= 4000 + 1000
    lines = ledger.newest(1000)
    assert 3 < len(lines) < 50 and lines[-1]["run_id"] == RUN.format(199)
    assert len(path(folder).read_text().splitlines()) == len(lines)  # none is cut


def test_lines_of_other_versions_and_torn_ones_are_left_out(folder: str) -> None:
    ledger.add(folder, record(failure("b")), spec(1))
    good = json.loads(path(folder).read_text())
    bad: list[Any] = ["{", "[]", "7", {}, {**good, "at": "x"}, {**good, "run_id": 7}, {**good, "failures": [7]}]
    with path(folder).open("a") as file:
        file.writelines(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in bad)
    assert [line["run_id"] for line in ledger.newest(20)] == [RUN.format(1)]


def test_a_full_disk_costs_the_line_and_no_more(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    ledger.add(folder, record(failure("b")), spec(1))
    assert ledger.newest(20) == []


def lost(event: str, node: int, at: float) -> dict[str, Any]:
    """As gang.jsonl has it."""
    return {"event": event, "fields": {"node": node, "at": at}, "epoch": 1}


@pytest.mark.parametrize(
    ("hosts", "after", "outage"),
    [
        (3, [lost("Restarted", 1, 999.0), lost("Restarted", 0, 999.1), lost("Restarted", 2, 1050.0)], True),
        (4, [lost("Lost", 1, 999.0), lost("Lost", 2, 999.0), lost("Lost", 3, 1007.0)], True),
        (2, [lost("Restarted", 0, 999.0), lost("Restarted", 1, 999.0)], True),
        (4, [lost("Lost", 1, 999.0), lost("Lost", 2, 999.0)], False),
        (2, [lost("Lost", 1, 999.0), lost("Restarted", 1, 1030.0)], False),  # it was lost, and is back
        (2, [lost("Lost", 1, 999.0), lost("Lost", 0, 1999.0)], False),
        (1, [lost("Restarted", 0, 999.0)], False),
        (3, [], False),
    ],
)
def test_a_loss_of_most_hosts_at_once_is_an_outage(
    folder: str, hosts: int, after: list[dict[str, Any]], outage: bool
) -> None:
    begun = [{"event": "Started", "fields": {"node": node, "attempt": 3, "at": 900.0}} for node in range(hosts)]
    events = Path(folder, "gang.jsonl")
    events.parent.mkdir(parents=True)
    events.write_text("".join(f"{json.dumps(each)}\n" for each in (*begun, 7, {"event": "Lost"}, *after)) + '{"ev')
    ledger.add(folder, record(failure("b")), spec(1))
    ((found,),) = (line["failures"] for line in ledger.newest(1))
    assert found["outage"] is outage


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lost": True}, "host-lost"),
        ({"lost": True, "code": "membership-changed"}, "membership-changed"),
        ({"lost": True, "gone": True}, "agent-killed"),
        ({"stalled": True}, "collective-timeout"),
        ({"code": "gpu-lost", "exit_code": 1}, "gpu-lost"),
        ({"exit_code": 1, "said": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}, "gpu-ecc-error"),
        ({"exit_code": 1, "said": "OSError: [Errno 28] No space left on device"}, "disk-full"),
        ({"exit_code": 1, "said": "KeyError: 'image'"}, "script-exception"),
        ({"signal": "SIGKILL"}, "worker-sigkilled"),
        ({"signal": "SIGKILL", "oom": True}, "host-oom-killed"),
        ({"signal": "SIGKILL", "oom": True, "own_limit": True}, "cgroup-oom-killed"),
        ({"signal": "SIGSEGV", "requested": True}, "script-exception"),
        ({"signal": "SIGBUS"}, "worker-segfault"),
        ({"signal": "SIGABRT", "said": "  what():  [enforce fail at pair.cc] sizes differ"}, "script-exception"),
        ({"rank": 2, "exit_code": None, "signal": None}, "script-exception"),
        ({}, "unknown"),
    ],
)
def test_a_failure_has_the_code_of_what_its_record_shows(fields: dict[str, Any], code: str) -> None:
    assert ledger.code_of(fields) == code


def test_a_kill_at_the_limit_of_the_own_cgroup_is_told_from_one_of_the_host() -> None:
    now = rank_failure.memory_kills()
    for before, keys in (
        (now, set()),
        (now._replace(of_host="oom_kill -1"), {"oom"}),
        (now._replace(at_own_limit="oom -1"), {"oom", "own_limit"}),
    ):
        failure = rank_failure.record("rank 1", 1, signal.SIGKILL, 7, "", None, before)
        assert failure.keys() & {"oom", "own_limit"} == keys


# --- who stands out


def ended(number: int, *guilty: str, node: int = 0, code: str = "host-lost", **more: Any) -> EndedRun:
    one = {"attempt": 1, "code": code, "what": "w", "at": float(number), **more}
    failures = [{"host": host, **one} for host in guilty]
    line = {"at": float(number), "name": "n", "state": "lost", "attempts": 1, "node": node, "failures": failures}
    return decode(EndedRun, {**line, "run_id": RUN.format(number)}, "run")


def test_a_host_that_ended_three_of_the_last_five_runs_stands_out() -> None:
    runs = [ended(number, *(["c"] if number in (0, 3, 5, 6) else [])) for number in range(7)]
    (found,) = find_unreliable({"a": runs, "b": runs, "c": runs})
    assert (found.host, found.failed, found.runs, found.run_id) == ("c", 3, 5, RUN.format(6))
    assert "3 of the last 5 runs" in str(found)


def test_a_lost_host_is_known_by_the_ledgers_of_the_others() -> None:
    runs = [ended(number, "c") for number in range(2)]
    (found,) = find_unreliable({"a": runs, "b": runs, "c": []})
    assert (found.host, found.failed, found.runs) == ("c", 2, 2)


def test_the_head_is_believed_against_a_host_that_was_cut_off() -> None:
    at_head = [ended(number, "c") for number in range(2)]
    cut_off = [ended(number, "a", node=2) for number in range(2)]
    assert [one.host for one in find_unreliable({"c": cut_off, "a": at_head})] == ["c"]


def test_one_failure_those_of_all_hosts_and_those_of_the_script_are_no_reason() -> None:
    assert find_unreliable({"a": [ended(1, "a"), ended(2)], "b": []}) == ()
    alike = [ended(1, "a", "b"), ended(2, "a", "b")]
    assert find_unreliable({"a": alike, "b": alike}) == ()
    for code in ("script-exception", "cgroup-oom-killed", "worker-sigkilled"):  # the last: somebody has killed the rank
        runs = [ended(number, "a", code=code) for number in range(5)]
        assert find_unreliable({"a": runs, "b": runs}) == ()
    runs = [ended(number, "a", what="host lost, and b as well, so no majority is left") for number in range(5)]
    assert find_unreliable({"a": runs, "b": runs}) == ()
    runs = [ended(number, "a", outage=True) for number in range(5)]
    assert find_unreliable({"a": runs, "b": runs}) == ()
    assert find_unreliable({}) == ()
