"""By which signals `up` saves a snapshot and stops the run that it follows, and what it says at the end."""

from __future__ import annotations

import signal

import pytest
from fake_relay import part_of

from orchestrator.answers.decode import decode
from orchestrator.answers.runs import Verdict
from orchestrator.runs.conclusion import advise_after_lost_head, with_purposes
from orchestrator.runs.finishing import finish_signals


@pytest.mark.parametrize(
    ("environment", "is_last_word"),
    [
        ({}, False),
        ({"SLURM_CONF": "/etc/slurm.conf", "PBS_DEFAULT": "server"}, False),  # a login node
        ({"SLURM_JOB_ID": ""}, False),
        ({"SLURM_JOB_ID": "7"}, True),
        ({"PBS_JOBID": "7.server"}, True),
        ({"LSB_JOBID": "7"}, True),
    ],
)
def test_sigterm_and_sighup_stop_a_run_only_in_a_batch_job(environment: dict[str, str], is_last_word: bool) -> None:
    assert (signal.SIGTERM in finish_signals(environment)) is is_last_word
    assert (signal.SIGHUP in finish_signals(environment)) is is_last_word
    assert {signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGURG} <= set(finish_signals(environment))


def test_a_command_is_never_broken_by_its_purpose() -> None:
    resume = "ddp-orch up inventory.yaml --name tune -- train.py --lr 0.1 --epochs 30"
    commands = {"ddp-orch report": "curves", resume: "resume"}
    narrow = with_purposes(commands, 80)
    assert f"  {resume}" in narrow and max(map(len, narrow)) <= 80
    assert [line.split("  # ")[0].strip() for line in with_purposes(commands, 120)] == list(commands)


def test_after_a_lost_head_the_advice_is_about_who_has_a_snapshot() -> None:
    first = {"host": "a", "node": 0, "rank": None, "what": "head lost", "at": 9.0, "lost": True}
    verdict = decode(Verdict, {"state": "lost", "first_failure": first, "stopped_by": None}, "verdict")
    empty, full = (part_of(node=1, host="b", hosts=["a", "b"], outputs=has) for has in (False, True))
    head = part_of(node=0, host="a", hosts=["a", "b"], outputs=True)
    for parts, named in (({"b": full}, "such as b"), ({"b": empty}, "only a"), ({"a": head, "b": empty}, "a answers")):
        advice = advise_after_lost_head(verdict, parts, "ddp-orch restart x")
        setting = "" if parts == {"b": full} else " --set run.resume=head"
        assert named in advice and advice.endswith(f": ddp-orch restart x{setting}")
    of_three = part_of(node=1, host="b", hosts=["a", "b", "c"], nprocs=[1, 1, 1], team=3)
    assert "c did not answer" in advise_after_lost_head(verdict, {"b": of_three}, "x")
    advice = advise_after_lost_head(verdict, {"b": empty}, "ddp-orch up --name x -- train.py -- y")
    assert advice.endswith(": ddp-orch up --name x --set run.resume=head -- train.py -- y")
