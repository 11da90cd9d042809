"""`describe`: the table of hosts, and the command that the user gave."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fake_relay import part_of

from orchestrator.answers.recorded import Drain, DrainFields, Spec
from orchestrator.commands.describe import _describe_head, _if_head_lost, _lines, command_of
from orchestrator.node.serve import runs
from orchestrator.plan.run_program import RUN_PROGRAM, without_program
from orchestrator.runs.registry import Run


def node(host: str, role: str, rank: int | None, state: str) -> dict[str, Any]:
    nothing = {"witness": False, "exit_code": None, "signal": None, "pid": None, "unfit": None}
    return {"host": host, "role": role, "node_rank": rank, "state": state, **nothing}


def table(
    state: str,
    nodes: list[dict[str, Any]],
    missing: tuple[str, ...] = (),
    suspects: tuple[str, ...] = (),
    **of_lines: Any,
) -> list[list[str]]:
    page: dict[str, Any] = dict.fromkeys(("ended_at", "first_failure", "command", "launcher", "inventory", "workdir"))
    page |= {"head": "a", "if_head_lost": None}
    page |= {"run_id": "R", "name": "R", "state": state, "attempt": 3, "max_restarts": 3, "by": "ann", "setup": []}
    page |= {
        "started_at": "2026-01-01T12:00:00Z",
        "code": None,
        "waits": None,
        "suspects": suspects,
        "nodes": nodes,
        "events": [],
        "files": {},
    }
    page["ranks"] = {each["host"]: [each["node_rank"], 1] for each in nodes}
    rows = [re.split(" {2,}", line) for line in _lines(page, "ddp-orch events", missing, **of_lines)]
    start = next(number for number, row in enumerate(rows) if row[0] == "HOST")
    return [row for row in rows[start + 1 :] if row != [""]]


def test_a_head_that_the_others_wait_for_is_said_to_be_lost() -> None:
    page: dict[str, Any] = {"head": "a", "if_head_lost": "wait", "waits": {"hosts": ["b"]}}
    assert "if it is" in str(_describe_head(page))
    assert "if it is" not in str(_describe_head({**page, "waits": {"hosts": ["a", "b"]}}))


def test_a_host_that_was_left_out_is_not_said_to_be_silent() -> None:
    rows = table("running", [], ("b", "c"), unasked=("c",))
    assert [(row[0], row[-1]) for row in rows] == [("b", "no answer"), ("c", "not asked")]


@pytest.mark.parametrize(
    ("head_lost", "answer", "follows"),
    [
        ("elect", "abc", "elect"),
        ("elect", "ab", "wait"),  # one is no majority of three
        ("elect", "bc", "elect"),
        ("stop", "abc", "wait"),
    ],
)
def test_what_follows_if_the_head_is_lost(head_lost: str, answer: str, follows: str) -> None:
    team = {"hosts": list("abc"), "nprocs": [1, 1, 1], "team": 3, "ranks": 3}
    run = Run("R", "R", "running", 1, "", {host: part_of(**team, host=host, node="abc".index(host)) for host in answer})
    spec = Spec((), "", "", {}, (), None, head_lost=head_lost, rejoin_timeout=60.0)
    assert _if_head_lost(run, spec) == follows


def test_a_lost_host_that_was_drained_does_not_count_for_the_majority() -> None:
    team = {"hosts": list("abcd"), "nprocs": [1, 1, 1, 1], "team": 4, "ranks": 4}
    run = Run("R", "R", "running", 1, "", {host: part_of(**team, host=host, node="abcd".index(host)) for host in "acd"})
    spec = Spec((), "", "", {}, (), None, head_lost="elect", rejoin_timeout=60.0)
    assert _if_head_lost(run, spec) == "wait"
    assert _if_head_lost(run, spec, [Drain("Drain", DrainFields(10.0, 1, "ann@laptop"))]) == "elect"


def test_a_host_that_was_rebooted_has_no_place_in_the_attempt_of_the_others() -> None:
    nodes = [node("a", "head", 0, "running"), node("b", "team", 1, "lost")]
    assert table("running", nodes) == [["a", "head", "0", "0", "running"], ["b", "-", "-", "-", "lost"]]


def test_a_host_that_does_not_answer_is_listed() -> None:
    assert table("running", [node("a", "head", 0, "running")], ("b",))[1:] == [["b", "-", "-", "-", "no answer"]]


def test_a_silent_host_is_suspect_until_it_is_lost() -> None:
    rows = table("suspect", [node("a", "head", 0, "running")], ("b", "c"), ("b",))
    assert [row[-1] for row in rows] == ["running", "suspect, no answer", "no answer"]


def test_a_host_that_is_not_used_is_shown_with_the_reason() -> None:
    left_out = {**node("b", "spare", None, "waiting"), "unfit": ["disk-full"]}
    rows = table("running", [node("a", "head", 0, "running"), left_out])
    assert rows[1][:3] == ["b", "spare", "-"] and "disk-full" in rows[1][-1]


def test_a_lost_run_shows_where_its_hosts_were() -> None:
    assert table("lost", [node("a", "head", 0, "lost")]) == [["a", "head", "0", "0", "lost"]]


def test_the_program_around_a_command_is_not_shown() -> None:
    assert without_program(["/p", "-u", "-c", RUN_PROGRAM, "bash", "run.sh"]) == ["bash", "run.sh"]
    for own in (["/p", "-u", "train.py", "-c", "x.yaml"], ["/p", "-u", "-c", "print(1)", "x"]):
        assert without_program(own) == own


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["--multi_gpu", "train.py", "--steps", "6"], "train.py"),
        (["--multi_gpu", "--mixed_precision", "bf16", "-m", "my.train", "--steps", "6"], "-m my.train"),
        (["--multi_gpu", "program", "--steps", "6"], None),
    ],
)
def test_of_accelerate_the_script_is_shown_and_not_its_flags(words: list[str], script: str | None) -> None:
    command = ("/p", "-u", "-c", RUN_PROGRAM, *words)
    launcher = {"name": "accelerate"}
    shown = command_of(Spec((), "ann", "/p", {}, command, None, launcher=launcher))
    assert " ".join(shown) == (f"{script} --steps 6" if script else " ".join(words))
    assert runs.script_of(list(command), launcher) == (script or words[0])
    assert runs.script_of(list(command), {"name": "node"}) == " ".join(words)
