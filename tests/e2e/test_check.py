"""`check` names what is wrong with a host, and the host, and how to mend it; of healthy hosts it says nothing.

Every fault of breakages.py is made for real. Here a part of them; all: `make breakages`.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from lab.lab import Lab

from .breakages import CASES, Case, Overrides, give_gpus
from .driver import ok, orch

CHOSEN = [one for one in CASES if one.short or os.environ.get("DDP_ORCH_ALL_BREAKAGES")]


def check(lab: Lab, overrides: Overrides, *options: str) -> subprocess.CompletedProcess[str]:
    return orch(lab, "check", lab.inventory(**overrides), "--json", *options)


def findings_of(result: subprocess.CompletedProcess[str], code: int = 0) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(ok(result, code).stdout)["findings"]
    return findings


def alarms(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in findings if one["severity"] != "note"]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_what_is_broken_is_named_with_its_host_and_a_fix_and_gone_when_it_is_mended(lab3: Lab, case: Case) -> None:
    base = give_gpus(lab3) if case.gpus else {}
    options = [case.level] if case.level else []
    with case.break_(lab3) as overrides:
        result = check(lab3, {**base, **overrides}, *options)
    findings = findings_of(result, case.exit_code)
    named = [one for one in findings if one["code"] == case.code and one["severity"] == case.severity]
    assert named, findings
    guilty = sorted({host for one in named for host in one["hosts"]})
    assert guilty == [f"node-{number}" for number in case.guilty], findings
    assert all(one["fix"] and one["evidence"] for one in named), named
    assert any(case.fix in one["fix"] for one in named), named
    assert any(case.says in one["message"] for one in named), named
    others = {one["code"] for one in alarms(findings)} - {case.code, *case.allowed}
    assert not others, findings
    assert alarms(findings_of(check(lab3, base, *options))) == []
