"""The advice of `diagnose` where the ranks could not import a module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.diagnosis.causes import load_knowledge
from orchestrator.diagnosis.engine import Diagnosis
from orchestrator.inventory.model import parse
from orchestrator.output.finding import Finding
from orchestrator.runs import missing_modules

KEYS = "hosts: [{name: a, python: /v/bin/python}, {name: b, container: {image: nvcr.io/x}}]"
HOSTS = {host.name: host for host in parse(KEYS, "inventory.yaml").hosts}
CODE = "script-import-error"
FIX = load_knowledge().causes[CODE].fix
MISSING = Finding("error", CODE, ("a",), "It is missing.", FIX, ("ModuleNotFoundError: No module named 'yaml'",))


def fix_of(finding: Finding) -> str:
    both = missing_modules.explain(Diagnosis((finding,), (), ((1, finding),)), HOSTS)
    assert both.findings[0] == both.earlier[0][1]
    return both.findings[0].fix


def test_the_command_installs_the_package_of_a_missing_module() -> None:
    assert "on a: `/v/bin/python -m pip install pyyaml`" in fix_of(MISSING)


def test_in_a_container_it_belongs_into_the_image() -> None:
    fix = fix_of(replace(MISSING, hosts=("b",)))
    assert "image" in fix and "/v/bin" not in fix


@pytest.mark.parametrize(
    ("named", "meant"), [("json.decodr", "json.decoder"), ("json.tool.x", ""), ("nowhere_here.x", "")]
)
def test_a_misspelled_module_of_an_installed_package_is_not_installed(named: str, meant: str) -> None:
    """Python names the first part that it does not find: the package is there."""
    fix = fix_of(replace(MISSING, evidence=(f"ModuleNotFoundError: No module named '{named}'",)))
    assert named in fix and ("did you mean" in fix) == bool(meant) and meant in fix
    assert "Correct" in fix and "PYTHONPATH" in fix


def test_a_misspelled_module_of_ones_own_is_looked_for_in_the_code_that_was_sent(tmp_path: Path) -> None:
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils/net.py").touch()
    finding = replace(MISSING, evidence=("ModuleNotFoundError: No module named 'utils.nett'",))
    fix = missing_modules.explain(Diagnosis((finding,), ()), HOSTS, str(tmp_path)).findings[0].fix
    assert "did you mean utils.net?" in fix and "PYTHONPATH" not in fix


@pytest.mark.parametrize(("named", "made"), [("utils.net", "net.py"), ("utils.io.fast", "io/fast.py")])
def test_a_module_that_was_added_after_the_start_only_needs_another_start(
    tmp_path: Path, named: str, made: str
) -> None:
    (tmp_path / "utils/io").mkdir(parents=True)
    (tmp_path / "utils" / made).touch()
    finding = replace(MISSING, evidence=(f"ModuleNotFoundError: No module named '{named}'",))
    fix = missing_modules.explain(Diagnosis((finding,), ()), HOSTS, str(tmp_path)).findings[0].fix
    assert named in fix and "there now" in fix and "Correct" not in fix


@pytest.mark.parametrize(
    "other",
    [
        replace(MISSING, fix="Rename cuda.py."),
        replace(MISSING, evidence=("ImportError: cannot import name 'x' from 'yaml'",)),
        replace(MISSING, evidence=("ModuleNotFoundError: No module named 'a.b'; 'a' is not a package",)),
        replace(MISSING, hosts=()),
    ],
)
def test_other_advice_stays(other: Finding) -> None:
    assert fix_of(other) == other.fix
