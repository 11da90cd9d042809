"""A run that resumes where only some hosts have the snapshot: `up` says so, as such ranks would start at step 0."""

from __future__ import annotations

import pytest

from orchestrator.answers.prepare import Prepared
from orchestrator.inventory import model
from orchestrator.plan import plan
from orchestrator.plan.entrypoint import TRAINER
from orchestrator.runs import inheritance, launch


def warnings(text: str, resuming: set[str], code: plan.Code | None = None, *, before: str | None = None) -> list[str]:
    inventory = model.parse(text, "i.yaml")
    of = plan.make(inventory, run_id="R", name="mine", command=("-u", "x.py"), code=code, env={}, debug=False)
    warned: list[str] = []
    context = launch.LaunchContext(
        by="",
        secrets={},
        run_key=b"",
        skip_check=False,
        step=lambda _: None,
        warn=warned.append,
        command_without=lambda _: "",
        command_to_continue=lambda run: f"ddp-orch restart {run}",
    )
    names = [node.host.name for node in of.nodes]
    answers = {name: Prepared(beside=(), resumes=name in resuming, resumed_with=before) for name in names}
    launch._show_prepared(answers, of, context)
    return warned


def test_hosts_without_the_snapshot_are_named() -> None:
    (warning,) = warnings("hosts: [a, b, c]", {"a"})
    assert warning.startswith("b,c: ") and "--set run.resume=head" in warning


@pytest.mark.parametrize(
    ("text", "resuming"),
    [
        ("hosts: [a, b]", set[str]()),
        ("hosts: [a, b]", {"a", "b"}),
        ("hosts: [a, b]\nrun: {resume: head}", {"a"}),
        ("hosts: [a, b]\nrun: {output: /shared}", {"a"}),  # a disk of all hosts: another check looks at it
        ("hosts: [a, {name: b, spare: true}]", {"a"}),
    ],
)
def test_nothing_is_said_where_every_rank_finds_the_snapshot_or_there_is_none(text: str, resuming: set[str]) -> None:
    assert warnings(text, resuming) == []


def test_the_bundled_trainer_sends_its_snapshots_itself() -> None:
    bundled = plan.Code(sha256="0" * 64, cwd=".", root=str(TRAINER.parent), files=1, size=1)
    assert warnings("hosts: [a, b]", {"a"}, bundled) == []


def test_it_is_said_that_each_host_resumes_from_its_own_files() -> None:
    for text, is_said in (
        ("hosts: [a, b]", True),
        ("hosts: [a, b]\nrun: {resume: head}", False),
        ("hosts: [a, b]\nrun: {output: /shared}", False),
        ("hosts: [a]", False),
    ):
        of = plan.make(
            model.parse(text, "i.yaml"), run_id="R", name="mine", command=("-u", "x.py"), code=None, env={}, debug=False
        )
        answers = {node.host.name: Prepared(beside=(), resumes=True) for node in of.nodes}
        (line,) = inheritance.describe(answers, of, None)
        assert ("run.resume is none" in line) == is_said


def test_a_run_without_the_run_resume_of_the_one_before_is_told() -> None:
    (warning,) = warnings("hosts: [a, b]", {"a", "b"}, before="head")
    assert "--set run.resume=head" in warning
    assert warnings("hosts: [a, b]", {"a", "b"}, before="none") == []
    assert warnings("hosts: [a, b]\nrun: {resume: head}", {"a", "b"}, before="head") == []
    assert warnings("hosts: [a]", {"a"}, before="head") == []
