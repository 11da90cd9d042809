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


def advise(run: Run, revive: str) -> str:
    """What ends the wait, as a sentence. `revive`: the command that revives the run."""
    hosts = run.waits.hosts if run.waits else ()
    unfit = {host: codes for host, codes in run.unfit.items() if host in hosts}
    if not hosts or len(unfit) < len(hosts):
        return f"If a host was rebooted: {revive}"
    codes = sorted({code for codes in unfit.values() for code in codes})
    return (
        f"Not used: {fold(unfit)}, because of {', '.join(codes)}. If you fix that in time, the run continues by itself"
    )
