"""Say which hosts a run waits for."""

from __future__ import annotations

from collections.abc import Iterable

from ..answers.runs import Waits
from ..output.console import Console, fold
from ..output.lines import rfc3339, whole_seconds
from .registry import Run

DATE = len("2026-01-01T")


def note(run: Run, console: Console) -> None:
    """Print which hosts the run waits for, if it does."""
    if run.waits:
        console.note(f"run {run.run_id} waits for {describe(run.waits.hosts, rfc3339(run.waits.until))}")


def describe(hosts: Iterable[str], until: str) -> str:
    """`node-1 until 2026-01-01T12:00:00Z`. `until`: as in JSON."""
    return f"{fold(hosts)} until {whole_seconds(until)}"


def describe_briefly(waits: Waits) -> str:
    return f"waiting for {fold(waits.hosts)} until {whole_seconds(rfc3339(waits.until))[DATE:]}"
