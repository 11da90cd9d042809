"""Say which hosts a run waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..answers.runs import Waits
from ..output.console import Console, fold
from ..output.lines import rfc3339, whole_seconds
from .registry import Run

DATE = len("2026-01-01T")


def note(run: Run, console: Console) -> None:
    """Print which hosts the run waits for, if it does."""
    if run.waits and (apart := _parts_apart(run)):
        sides = " and ".join(f"{fold(hosts)} for {fold(awaited)}" for awaited, hosts in apart.items())
        until = whole_seconds(rfc3339(run.waits.until))
        console.note(
            f"run {run.run_id} waits until {until}: {sides}. All of them answer here, so the network between them may "
            "be cut"
        )
    elif run.waits:
        console.note(f"run {run.run_id} waits for {describe(run.waits.hosts, rfc3339(run.waits.until))}")


def note_unaware(run: Run, kill: str, console: Console) -> None:
    """Print which hosts wait for a run that has ended. `kill`: the command that ends it there."""
    for host, part in run.parts.items() if run.broken else ():
        if part.unfinished:
            until = f", until {whole_seconds(rfc3339(part.waits.until))}" if part.waits else ""
            console.note(
                f"run {run.run_id} has ended ({run.state}), but {host} was cut off and does not know: it waits for "
                f"the other hosts, and keeps its locks{until}. To end it there: {kill}"
            )


def _parts_apart(run: Run) -> Mapping[tuple[str, ...], Sequence[str]]:
    """The hosts that wait, by those that they wait for, if all of these wait themselves."""
    waiting = {host: part.waits.hosts for host, part in run.parts.items() if part.unfinished and part.waits}
    apart: dict[tuple[str, ...], list[str]] = {}
    for host, awaited in sorted(waiting.items()):
        apart.setdefault(awaited, []).append(host)
    return apart if len(apart) > 1 and {name for awaited in apart for name in awaited} <= set(waiting) else {}


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
