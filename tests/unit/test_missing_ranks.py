"""What `diagnose` advises for a script that lacks the variables of a rank, by the launcher of the run."""

from __future__ import annotations

from typing import Any

import pytest
from fake_relay import A_RUN, Dialer, Relay, part_of

from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.model import parse
from orchestrator.output.finding import Finding
from orchestrator.output.mask import Mask
from orchestrator.runs import diagnose

HOSTS = {host.name: host for host in parse("hosts: [a]", "inventory.yaml").hosts}
FAILURE = {"at": 5.0, "what": "rank 0: exit code 1", "rank": 0, "exit_code": 1, "signal": None, "pid": 4711}
VERDICT = {"state": "failed", "first_failure": {**FAILURE, "host": "a", "node": 0}, "stopped_by": None}
FAILED = {**A_RUN, "state": "failed", "verdict": VERDICT}
SPEC = {
    "nodes": [{"host": "a"}],
    "by": "ann",
    "python": "python3",
    "env": {},
    "command": ["bash", "run.sh"],
    "agent_argv": None,
}
NO_RANK = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 4, in <module>\n    dist.init_process_group()\n'
    "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but "
    "not set\n"
)


def first_cause(text: str, launcher: Any, asked: list[str] | None = None) -> Finding:
    def answer(relay: Relay, request: dict[str, Any]) -> None:
        (asked if asked is not None else []).append(request["op"])
        if request["op"] == "evidence":
            relay.result(request, {"failures": [FAILURE], "kernel": [], "oom_kills": 0, "dumps": []})
        elif request["op"] == "record":
            spec = {**SPEC, "launcher": launcher}
            relay.result(request, {"run": None, "spec": spec, "exit": None, "events": [], "samples": []})
        else:
            relay.data(request, text.encode())
            relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], {"a": part_of(**FAILED)}, {"a": 0}, HOSTS, fleet, Mask())
    fleet.close()
    return found.findings[0]


@pytest.mark.parametrize("name", ["skypilot", "node", "my-own"])
def test_a_script_that_runs_once_per_host_needs_torchrun_or_another_launcher(name: str) -> None:
    first = first_cause(NO_RANK, {"name": name, "scope": "host"})
    assert (first.code, name in first.message) == ("missing-rdzv-env", True)
    assert "torchrun FILE.py" in first.fix and "--set run.launcher=torchrun" in first.fix


@pytest.mark.parametrize("launcher", [{"name": "direct", "scope": "rank"}, None])
def test_other_launchers_do_not_change_the_advice(launcher: Any) -> None:
    first = first_cause(NO_RANK, launcher)
    assert (first.code, "run.launcher" in first.message + first.fix) == ("missing-rdzv-env", False)


def test_no_host_is_asked_for_the_launcher_for_another_cause() -> None:
    asked: list[str] = []
    assert first_cause("KeyError: 'lr'\n", {"name": "node", "scope": "host"}, asked).code != "missing-rdzv-env"
    assert "record" not in asked
