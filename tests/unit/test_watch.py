"""How a run ended, as its hosts tell it: in one line, with the run's own exit code."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_relay import A_FAILURE, A_RUN, Dialer, part_of

from orchestrator.answers.attach import Attached, StrayOutputs
from orchestrator.errors import UnreachableError
from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.advice import AboutRun
from orchestrator.inventory.model import parse
from orchestrator.output.console import Console
from orchestrator.runs.conclusion import conclude
from orchestrator.runs.follow import LogFilter, View, update
from orchestrator.runs.readers import Ended
from orchestrator.runs.resume_command import Obstacle

HOSTS = parse("hosts: [a, b]", "inventory.yaml").hosts
NODES = {"a": 0, "b": 1}
SUCCEEDED = {"state": "succeeded", "first_failure": None, "stopped_by": None}
FAILED = {"state": "failed", "first_failure": A_FAILURE}


def concluded(
    nodes: dict[str, int] = NODES,
    *,
    resume: str = "",
    lacks_snapshot: bool = False,
    stray: StrayOutputs | None = None,
    stray_hosts: str = "ab",
    unreachable: bool = False,
    **verdicts: dict[str, Any],
) -> tuple[int, list[str]]:
    """The exit code, and the lines that are said."""
    fleet = Fleet(Dialer(), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    view = View(A_RUN["run_id"], HOSTS, LogFilter(follow=True), fleet, lambda _: None)
    for host, verdict in verdicts.items():
        told = verdict if {"pid", "verdict"} & set(verdict) else {"verdict": verdict}  # without a guard, it has none
        part = part_of(node=-1 if host == "b" else 0, host=host, **told)
        view._followed[host] = update(
            view._followed[host], Ended(Attached(part, stray_outputs=stray if host in stray_hosts else None))
        )
    stream = io.StringIO()
    about, console = AboutRun("mine", "i.yaml"), Console(stream, colour=False)
    for host in set(nodes) - set(verdicts):
        if unreachable:
            view._followed[host] = update(view._followed[host], Ended(failure=UnreachableError("gone")))
    code = conclude(
        A_RUN["run_id"], about, nodes, view, console, resume=resume, explain=lambda: Obstacle(lacks_snapshot)
    )
    return code, stream.getvalue().splitlines()


def test_the_outcome_is_that_of_the_head_whatever_another_host_claims() -> None:
    assert concluded(a=FAILED, b=SUCCEEDED)[0] == 1
    assert concluded(a=SUCCEEDED, b=FAILED)[0] == 0
    code, lines = concluded(b=SUCCEEDED)
    assert code == 4 and lines[0].startswith("error: ") and "`ddp-orch ps i.yaml --all`" in lines[0]
    assert concluded({"a": 0}, b=FAILED)[0] == 4  # b contradicts another host


@pytest.mark.parametrize("lacks", [True, False])
def test_the_command_to_resume_copies_a_snapshot_that_some_hosts_lack(lacks: bool) -> None:
    ended = {"a": {"verdict": FAILED, "outputs": True}, "b": {"verdict": FAILED, "outputs": True}}
    _, lines = concluded(resume="ddp-orch up --name x -- train.py -- y", lacks_snapshot=lacks, **ended)
    (command,) = (line.split("  # ")[0].strip() for line in lines if "up --name" in line)
    flag = "--set run.resume=head " if lacks else ""
    assert command == f"ddp-orch up --name x {flag}-- train.py -- y"


STOPPED = {"state": "stopped", "first_failure": None, "stopped_by": "ann@laptop"}


@pytest.mark.parametrize(
    ("told", "saved", "is_set"),
    [
        ({}, (True, False), True),
        ({}, (True, True), False),
        ({"resume": "head"}, (True, False), False),
        ({"shared_output": "/nfs/x"}, (True, False), False),
        ({"script": "-m trainer"}, (True, False), False),  # it sends its snapshots itself
    ],
)
@pytest.mark.parametrize("verdict", [FAILED, STOPPED])
def test_what_only_one_host_has_saved_is_copied_by_the_command_to_resume(
    verdict: dict[str, Any], told: dict[str, Any], saved: tuple[bool, bool], is_set: bool
) -> None:
    of_a, of_b = ({"verdict": verdict, **told, "outputs": has, "node_rank": node} for node, has in enumerate(saved))
    _, lines = concluded(resume="ddp-orch restart x", a=of_a, b=of_b)
    (line,) = (line for line in lines if "restart x" in line)
    assert ("--set run.resume=head" in line) == is_set
    assert not is_set or "only a " in line


def test_of_a_host_that_is_silent_it_is_unknown_whether_it_has_saved() -> None:
    _, lines = concluded(resume="ddp-orch restart x", a={"verdict": FAILED, "outputs": True})
    (line,) = (line for line in lines if "restart x" in line)
    command, _, purpose = line.partition("#")
    assert "run.resume" not in command and "--set run.resume=head" in purpose


def test_a_snapshot_beside_the_code_of_one_host_is_not_copied_by_any_command() -> None:
    for files, is_told in ((("last.pt",), True), (("train.log",), False)):
        stray = StrayOutputs("/x", 1, files)
        ended = {"a": {"verdict": FAILED}, "b": {"verdict": FAILED, "node_rank": 1}}
        _, lines = concluded(resume="ddp-orch restart mine -i i.yaml", stray=stray, stray_hosts="a", **ended)
        (line,) = (line for line in lines if "restart mine" in line)
        assert ("only a " in line) == is_told and "run.resume=head" not in line
        assert any("run.resume: head" in line for line in lines) == is_told


@pytest.mark.parametrize("by", ["ann@laptop (to restart it)", "up --watch"])
def test_no_command_to_resume_is_offered_where_the_next_run_has_begun(by: str) -> None:
    for stopped_by, offered in ((by, False), ("ann@laptop", True)):
        verdict = {"state": "stopped", "first_failure": None, "stopped_by": stopped_by}
        _, lines = concluded(resume="ddp-orch restart x", a={"verdict": verdict, "outputs": True})
        assert any("ddp-orch restart x" in line for line in lines) == offered


@pytest.mark.parametrize("resume", ["ddp-orch restart mine -i i.yaml", "ddp-orch up i.yaml --name mine -- train.py"])
def test_what_lies_beside_the_code_is_resumed_only_by_a_restart(resume: str) -> None:
    stray = StrayOutputs("/x", 1, ("last.pt",))
    _, lines = concluded(resume=resume, stray=stray, a={"verdict": FAILED}, b={"verdict": FAILED})
    assert any(line.startswith(f"  {resume} ") for line in lines) == ("restart" in resume)


def test_a_run_without_any_guard_is_lost_and_its_hosts_are_not_called_unreachable() -> None:
    lost = {"state": "lost", "pid": None}
    code, lines = concluded(a=lost, b=lost)
    assert code == 4 and "was lost" in lines[0] and "unreachable" not in lines[0]
    code, lines = concluded(a=lost)
    assert code == 4 and "answer from b" in lines[0]


def test_a_run_that_saved_a_snapshot_and_stopped_can_be_told_apart_by_its_exit_code() -> None:
    code, lines = concluded(a={"state": "stopped", "first_failure": None, "stopped_by": "run.walltime"})
    assert code == 75 and "by run.walltime" in lines[0]


@pytest.mark.parametrize("state", ["suspect", "waiting"])
def test_a_run_that_waits_for_a_host_is_unfinished(state: str) -> None:
    assert part_of(state=state).unfinished


@pytest.mark.parametrize("key", ["host", "what"])
def test_a_hosts_words_make_no_lines_of_ours(key: str) -> None:
    hostile = {**FAILED, "first_failure": {**A_FAILURE, "what": "x", key: "y\nerror: EVIL\r\x1b[2J"}}
    assert not any(line.startswith("error: EVIL") for line in concluded(a=hostile)[1])
    killed = {"state": "killed", "first_failure": None, "stopped_by": "ann\nerror: EVIL"}
    code, lines = concluded(a=killed)
    assert code == 130 and " ann error: EVIL" in lines[0]


@pytest.mark.parametrize("unreachable", [True, False])
def test_hosts_on_which_a_stop_is_not_verified_are_named(unreachable: bool) -> None:
    killed = {"state": "killed", "first_failure": None, "stopped_by": "Ctrl-C"}
    _, lines = concluded(a=killed, unreachable=unreachable)
    assert any("kill --leftovers" in line and " b." in line for line in lines) == unreachable
