"""Where rank 0 ran last, as hosts remember it, and what a run without that host is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from host_facts import decoded, facts

from orchestrator.answers.hello import Hello
from orchestrator.node.host import state
from orchestrator.node.serve import led_last
from orchestrator.runs import out_of_reach
from orchestrator.runs.probe import Probed

OLD, NEW = "20260101-120000-aaaa", "20260102-120000-bbbb"


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))


def write_run(run_id: str, node: int, events: list[tuple[str, dict[str, int]]] = [], **changed: Any) -> Path:  # noqa: B006
    """The record of a run of the hosts a, b and c, and c is a spare, on one of them."""
    folder = Path(state.run_folder(run_id))
    folder.mkdir(parents=True)
    nodes = [{"host": host, "spare": host == "c"} for host in "abc"]
    spec = {"run_id": run_id, "name": "job", "node": node, "nodes": nodes, **changed}
    state.write(str(folder / "spec.json"), spec)
    state.write(str(folder / "state.json"), {"attempt": 0 if node == 2 else 1, "committed": True})
    (folder / "gang.jsonl").write_text("".join(json.dumps({"event": kind, "fields": of}) + "\n" for kind, of in events))
    return folder


def host_of(name: str = "job") -> Any:
    found = led_last.look(name)
    return found and (found["run_id"], found["host"], found["here"])


@pytest.mark.parametrize("node", [0, 1, 2])
def test_without_an_election_rank_0_is_on_the_first_host(node: int) -> None:
    write_run(OLD, node)
    assert host_of() == (OLD, "a", node == 0)
    assert host_of("other") is None


@pytest.mark.parametrize(
    ("events", "host"),
    [
        ([("Started", {"attempt": 1})], "a"),
        ([("Started", {"attempt": 1}), ("Elected", {"node": 1})], "a"),  # the others wait for it
        ([("Started", {"attempt": 1}), ("Elected", {"node": 1}), ("Started", {"attempt": 1})], "a"),
        ([("Started", {"attempt": 1}), ("Elected", {"node": 1}), ("Started", {"attempt": 2})], "b"),
    ],
)
def test_an_elected_head_has_rank_0_once_an_attempt_has_started(events: Any, host: str) -> None:
    write_run(OLD, 2, events)
    assert host_of() == (OLD, host, False)


def test_the_newest_run_that_has_begun_counts() -> None:
    write_run(OLD, 1)
    state.write(str(write_run(NEW, 1) / "state.json"), {"attempt": 0, "committed": False})
    assert host_of() == (OLD, "a", False)
    state.write(str(Path(state.run_folder(NEW)) / "state.json"), {"attempt": 1})
    assert host_of() == (NEW, "a", False)


def test_outputs_on_a_shared_disk_and_damaged_records_are_passed_over() -> None:
    write_run(OLD, 1, shared_output="/nfs/job")
    assert host_of() is None
    write_run(NEW, 7)
    assert host_of() is None


def test_the_newest_file_of_the_outputs_is_dated() -> None:
    folder = write_run(OLD, 1)
    assert led_last.look("job") == {"run_id": OLD, "host": "a", "here": False, "newest": None}
    output = Path(state.output_folder(str(folder), {"name": "job"}))
    for path, written in (("deep/x.pt", 50.0), (".ddp-orch.kept/day/y.pt", 90.0), (".ddp-orch.leads", 90.0)):
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).touch()
        os.utime(output / path, (written, written))
    found = led_last.look("job")
    assert found and found["newest"] == 50.0


def probed(run_id: str | None, host: str = "", *, here: bool = False, newest: float | None = None) -> Probed:
    led = {"run_id": run_id, "host": host, "here": here, "newest": newest} if run_id else None
    hello = Hello((), "b", "m", (1, 1))
    return Probed(decoded(facts(led_last=led)), hello, (0.0, 0.0))


def test_a_run_without_the_host_of_rank_0_is_warned() -> None:
    lost = out_of_reach.find(["b", "c"], {"b": probed(OLD, "a"), "c": probed(None)})
    assert lost and lost.host == "a" and OLD in str(lost) and "without a snapshot" in str(lost)
    lost = out_of_reach.find(["b", "c"], {"b": probed(OLD, "a", newest=60.0), "c": probed(OLD, "a")})
    assert lost and "files of b" in str(lost) and "1970-01-01T00:01:00Z" in str(lost)
    both = {"b": probed(OLD, "a", newest=60.0), "c": probed(OLD, "a", newest=90.0)}
    for resume, offers in (("head", True), ("newest", False)):
        lost = out_of_reach.find(["b", "c"], both, resume)
        assert lost and "b of 1970-01-01T00:01:00Z" in str(lost) and "c of 1970-01-01T00:01:30Z" in str(lost)
        assert ("run.resume=newest" in lost.advice) == offers


@pytest.mark.parametrize(
    "answers",
    [
        {"b": probed(None), "c": probed(None)},
        {"a": probed(OLD, "a", here=True), "b": probed(OLD, "a")},
        {"a": probed(None), "b": probed(OLD, "a")},  # it has no record any more, but perhaps the files
        {"renamed": probed(OLD, "a", here=True), "b": probed(OLD, "a")},
        {"b": probed(OLD, "a"), "c": probed(NEW, "c", here=True)},  # others have trained since
    ],
)
def test_nothing_is_said_if_the_host_takes_part(answers: dict[str, Probed]) -> None:
    assert out_of_reach.find(answers, answers) is None


def test_a_host_that_is_waited_for_takes_part() -> None:
    assert out_of_reach.find(["a", "b"], {"b": probed(OLD, "a")}) is None
