"""The Python interface: it takes its arguments as the manual says, and finds the run that is meant."""

from __future__ import annotations

import inspect
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.api import Run, RunStatus, start
from orchestrator.errors import UsageError

MANUAL = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
FUNCTIONS = [orchestrator.find_run, orchestrator.list_runs, Run.status, Run.logs, Run.wait, Run.returned, Run.fetch]
FUNCTIONS += [Run.diagnose, Run.snapshot, Run.kill]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_manual_shows_which_arguments_have_to_be_named(function: Any) -> None:
    (shown,) = re.findall(rf"`{function.__name__}\((.*?)\)`", MANUAL)
    manual = [word.partition("=")[0].strip() for word in shown.split(",") if word]
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    others = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    assert manual == [*others, *(["*", *named] if named else [])]


def test_a_name_means_the_run_that_is_not_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    states = {"1": "failed", "2": "running", "3": "failed"}
    known = {Run(run_id, "exp"): RunStatus(state, 1, datetime.min, ()) for run_id, state in states.items()}
    monkeypatch.setattr(start, "list_runs", lambda *_, **__: known)
    assert [start.find_run(run).run_id for run in ("exp", "1", "3")] == ["2", "1", "3"]


def test_a_run_that_does_not_exist_is_answered_with_the_names_of_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {Run(str(number), f"exp{number}"): RunStatus("failed", 1, datetime.min, ()) for number in range(10, 28)}
    monkeypatch.setattr(start, "list_runs", lambda *_, **__: known)
    with pytest.raises(UsageError, match=r"exp27.*27.*exp26") as error:
        start.find_run("nope")
    assert "exp10" not in str(error.value) and "18" in str(error.value)
