"""`drain`: what it advises if the run cannot go on without the host."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from fake_relay import A_RUN, part_of

from orchestrator.answers.drain import DrainAnswer
from orchestrator.answers.operation import Arguments, Operation
from orchestrator.answers.runs import LIST, RunList
from orchestrator.commands import drain
from orchestrator.inventory.advice import AboutRun
from orchestrator.inventory.model import parse
from orchestrator.output.console import fold
from orchestrator.runs import newcomer
from orchestrator.runs.registry import Run


@pytest.mark.parametrize(
    ("host", "silent", "state", "elects", "helps", "does_not_help"),
    [
        ("b", ["b"], "waiting", True, ["revive", "Start"], ["drain", "add"]),
        ("b", ["b"], "running", False, ["revive", "Start"], ["drain", "add"]),
        ("b", ["b", "c"], "waiting", True, ["Bring", "revive"], ["drain", "add"]),
        ("b", ["c"], "running", True, ["Bring", "revive", "drain"], ["add"]),
        ("b", ["c"], "waiting", False, ["revive"], ["drain", "add"]),
        ("b", [], "running", True, ["add"], ["revive", "drain"]),
        ("a", [], "running", False, ["max_restarts"], ["revive", "drain", "add"]),
    ],
)
def test_what_helps_is_possible_and_not_what_was_just_refused(
    host: str, silent: list[str], state: str, elects: bool, helps: list[str], does_not_help: list[str]
) -> None:
    known = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3, "state": state}
    parts = {name: part_of(**known, node=node, host=name) for node, name in enumerate("abc")}
    run = Run("20260101-120000-0001", "exp", state, 1, "", parts)
    said = drain.refusal(run, host, silent, AboutRun("exp", "inventory.yaml"), elects=elects)
    assert all(word in said for word in helps), said
    assert not any(f" {word} " in said or f"ddp-orch {word}" in said for word in does_not_help), said
    assert "ddp-orch kill exp" in said
    left = [name for name in "abc" if name not in (host, *silent)]
    assert f"ddp-orch restart --hosts {shlex.quote(fold(left))} exp" in said


def test_no_host_is_to_be_added_where_the_launcher_takes_none() -> None:
    known = {"hosts": ["a", "b"], "nprocs": [1, 1], "team": 2, "ranks": 2}
    parts = {name: part_of(**known, node=node, host=name) for node, name in enumerate("ab")}
    run = Run("20260101-120000-0001", "exp", "running", 1, "", parts)
    said = drain.refusal(run, "b", [], AboutRun("exp", "inventory.yaml"), elects=False, is_fixed=True)
    assert "ddp-orch add" not in said and "ddp-orch restart --hosts a exp" in said


def test_what_helps_while_the_run_waits_for_hosts_with_a_problem() -> None:
    known = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3, "state": "waiting"}
    waits = {"waits": {"hosts": ["c"], "until": 2.0, "no_majority": False}, "unfit": {"c": ["disk-full"]}}
    parts = {name: part_of(**known, **waits, node=node, host=name) for node, name in enumerate("abc")}
    run = Run("20260101-120000-0001", "exp", "waiting", 1, "", parts)
    said = drain.refusal(run, "b", [], AboutRun("exp", "inventory.yaml"), elects=True)
    assert all(word in said for word in ("disk-full", "fix", "restart", "'!c'", "kill")), said
    assert "revive" not in said and said.count("restart") == 1


def test_the_problem_of_the_host_that_could_take_the_place_is_named() -> None:
    known = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 2, "ranks": 2}
    parts = {name: part_of(**known, node=node, host=name, node_rank=node) for node, name in enumerate("ab")}
    parts["a"] = part_of(**known, node=0, host="a", node_rank=0, unfit={"c": ["disk-full"]})
    parts["c"] = part_of(**known, node=2, host="c", node_rank=None)
    said = drain.refusal(
        Run("20260101-120000-0001", "exp", "running", 1, "", parts), "b", [], AboutRun("exp", "i"), elects=True
    )
    assert "disk-full" in said and "ddp-orch add" not in said


def test_a_restart_without_lost_hosts_names_those_that_are_left() -> None:
    known = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3}
    run = Run("20260101-120000-0001", "exp", "running", 1, "", {"c": part_of(**known, node=2, host="c")})
    about = AboutRun("exp", "inventory.yaml")
    assert "ddp-orch restart --hosts c exp" in drain._restart_without(run, ["b", "a"], about, [])
    assert drain._restart_without(run, ["a", "b", "c"], about, ["d"]) == ""


def test_the_places_of_hosts_that_a_restart_leaves_out_are_filled() -> None:
    known = {"nprocs": [1, 1], "team": 2, "ranks": 2}
    parts = {"b": part_of(**known, hosts=["a", "b"], node=1, host="b")}
    added = {"spare": part_of(**known, hosts=["a", "b", "spare"], node=2, host="spare")}
    about = AboutRun("exp", "inventory.yaml")
    for others, unused, hosts in ((added, [], "b,spare"), (added, ["d"], "b,spare"), ({}, ["a", "d", "e"], "b,d")):
        run = Run("20260101-120000-0001", "exp", "waiting", 1, "", {**parts, **others})
        assert f"ddp-orch restart --hosts {hosts} exp" in drain._restart_without(run, ["a"], about, unused)


class Starting:
    """A host whose run refuses requests until it was asked twice."""

    def __init__(self) -> None:
        self.asked = 0

    def request(self, operation: Operation[Any], arguments: Arguments) -> Any:
        if operation is LIST:
            known = {"hosts": ["a"], "nprocs": [1], "team": 1, "ranks": 1, "node": 0, "host": "a"}
            return RunList((part_of(**known, state="running" if self.asked > 1 else "starting"),))
        self.asked += 1
        return DrainAnswer(accepted=self.asked > 2, elects=True)


def test_a_run_that_is_just_starting_is_asked_again() -> None:
    host = Starting()
    assert drain._request(host, {"run_id": A_RUN["run_id"]}).accepted  # type: ignore[arg-type]
    assert host.asked == 3


@pytest.mark.parametrize(("epoch", "answer", "drained"), [(1, "ac", "b"), (1, "abc", None), (0, "ac", None)])
def test_a_lost_host_is_to_be_drained_when_another_is_added_if_it_counts_for_elections(
    epoch: int, answer: str, drained: str | None
) -> None:
    known = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3, "epoch": epoch}
    parts = {name: part_of(**known, node="abc".index(name), host=name) for name in answer}
    run = Run("20260101-120000-0001", "exp", "running", 1, "", parts)
    said = newcomer._describe_lost_voters(run, parse("hosts: [a, b, c]", "inventory.yaml"))
    assert f"ddp-orch drain {run.run_id} {drained}" in said if drained else not said
