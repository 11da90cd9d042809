"""Facts of all hosts become findings."""

from __future__ import annotations

from typing import Any

from orchestrator import inventory, plan
from orchestrator.checks import Finding, judge

PYTHON = {"executable": "/usr/bin/python3", "python": [3, 11, 0], "torch": "2.4.0"}


def found(
    text: str, facts: dict[str, dict[str, Any]] | None = None, hellos: dict[str, dict[str, Any]] | None = None
) -> list[Finding]:
    """What is found where every host is fine but for what is given."""
    read = inventory.parse(text, "inventory.yaml")
    made = plan.make(read, run_id="R", name="R", command=("train.py",), code=None, env={}, debug=False)
    names = [host.name for host in read.hosts]
    fine = {"python": PYTHON, "gpus": [], "workdir": None}
    identities = [
        {"boot_id": "b", "machine_id": "m", "state_inode": [1, number], "host": name}
        for number, name in enumerate(names)
    ]
    return list(
        judge(
            made,
            {name: {**fine, **(facts or {}).get(name, {})} for name in names},
            {name: {**one, **(hellos or {}).get(name, {})} for name, one in zip(names, identities, strict=True)},
        )
    )


def brief(findings: list[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.severity, one.code, one.hosts) for one in findings]


def test_good_hosts_have_no_findings() -> None:
    assert found("hosts: [a, b]") == []


def test_equal_messages_of_several_hosts_are_one_finding() -> None:
    broken = {"python": {"error": "python3 not found", "code": "remote-env-differs"}}
    (finding,) = found("hosts: [a, b, c]", {"a": broken, "c": broken})
    assert brief([finding]) == [("error", "remote-env-differs", ("a", "c"))]
    assert "python3 not found" in finding.message and "setup" in finding.fix


def test_a_python_without_torch_is_an_error() -> None:
    (finding,) = found("hosts: [a]", {"a": {"python": {**PYTHON, "torch": None}}})
    assert brief([finding]) == [("error", "missing-module-on-host", ("a",))]
    assert "/usr/bin/python3" in finding.message


def test_a_workdir_must_be_a_folder() -> None:
    text = "hosts: [{name: a, workdir: /shared}]"
    assert brief(found(text, {"a": {"workdir": False}})) == [("error", "remote-workdir-missing", ("a",))]
    assert found(text, {"a": {"workdir": True}}) == []


def test_gpus_that_are_wanted_must_be_there() -> None:
    text = "hosts: [{name: a, gpus: [0, 3]}]"
    two = [{"index": 0}, {"index": 1}]
    (finding,) = found(text, {"a": {"gpus": two}})
    assert brief([finding]) == [("error", "no-gpu-visible", ("a",))]
    assert "gpus 3 wanted" in finding.message and "has 2" in finding.message
    assert found("hosts: [{name: a, gpus: none}]") == []


def test_two_names_for_one_machine_are_an_error_but_not_two_state_folders_on_it() -> None:
    one = {"state_inode": [1, 1]}
    (finding,) = found("hosts: [a, b]", hellos={"a": one, "b": one})
    assert brief([finding]) == [("error", "duplicate-host", ("b",))]
    assert "same machine as a" in finding.message


def test_another_torch_on_one_host_is_a_warning_after_all_errors() -> None:
    findings = found(
        "hosts: [a, b, c, d]",
        {"a": {"python": {**PYTHON, "torch": "2.5.0"}}, "d": {"python": {**PYTHON, "torch": None}}},
    )
    assert brief(findings) == [
        ("error", "missing-module-on-host", ("d",)),
        ("warning", "torch-version-mismatch", ("a",)),
    ]
    assert "2.5.0" in findings[1].message and "2.4.0" in findings[1].message
