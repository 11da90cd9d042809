"""Say which hosts a run waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..answers.runs import Waits
from ..inventory.advice import AboutRun
from ..output.console import Console, fold, number_of
from ..output.lines import rfc3339, whole_seconds
from . import recent
from .registry import Run

DATE = len("2026-01-01T")
NOTHING_CHANGES = "no attempt can start, and no host can be drained or added"


def note(run: Run, console: Console, about: AboutRun | None = None) -> None:
    """Print which hosts the run waits for, if it does. `about`: to say what can be done without a majority."""
    if run.waits and (apart := _parts_apart(run)):
        sides = " and ".join(f"{fold(hosts)} for {fold(awaited)}" for awaited, hosts in apart.items())
        until = whole_seconds(rfc3339(run.waits.until))
        console.note(
            f"run {run.run_id} waits until {until}: {sides}. All of them answer here, so the network between them may "
            "be cut"
        )
    elif run.waits:
        console.note(f"run {run.run_id} waits for {describe(run.waits.hosts, rfc3339(run.waits.until))}")
        if about and (why := describe_no_majority(run, about)):
            console.note(why)
        elif about and _may_use_others(run) and (restart := restart_without(run, about)):
            console.note(f"to start it again {_elsewhere(run)}: {restart}")


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


def describe(hosts: Iterable[str], until: str, *, no_majority: bool = False) -> str:
    """`node-1 until 2026-01-01T12:00:00Z`. `until`: as in JSON."""
    why = "; without them, the others are no majority" if no_majority else ""
    return f"{fold(hosts)} until {whole_seconds(until)}{why}"


def describe_cut_off(run: Run) -> str:
    return f"{fold(run.cut_off)}, which answers here, but hears nothing of the others: check the network between them"


def describe_no_majority(run: Run, about: AboutRun) -> str:
    """Why no host can be drained or added, and the ways out. "" if a majority answers, or nothing is known of that."""
    if run.waits is None or not run.waits.no_majority:
        return ""
    silent = run.waits.hosts
    members = [name for name in run.hosts if name not in run.drained]
    left = [name for name in members if name not in silent]
    enough = len(members) // 2 + 1 - len(left)
    if apart := _parts_apart(run):
        return (
            f"no majority: {' and '.join(map(fold, apart.values()))} of run {run.run_id} answer here, but not each "
            f"other, so {NOTHING_CHANGES}. Repair the network between them"
        )
    if answering := _silent_but_here(run):
        return (
            f"no majority: {fold(left)} of run {run.run_id} hears nothing of {fold(answering)}, which answers here. "
            "After a reboot or `revive`, this takes some seconds to change. Otherwise the network "
            "between them may be cut. "
            f"Until then, {NOTHING_CHANGES}"
        )
    which = fold(silent) if enough >= len(silent) else f"{number_of(enough, 'host')} of {fold(silent)}"
    text = (
        f"no majority: only {fold(left)} of the {number_of(len(members), 'host')} of run {run.run_id} answers, so "
        f"{NOTHING_CHANGES}. Start {which} again, then: {about.command('revive')}"
    )
    restart = restart_without(run, about)
    where = _elsewhere(run) if _may_use_others(run) else f"without {fold(silent)}"
    return f"{text}. Or start the run again {where}: {restart}" if restart else text


def _silent_but_here(run: Run) -> list[str]:
    """The awaited hosts that answer here and have a guard of the run."""
    parts = {host: run.parts[host] for host in (run.waits.hosts if run.waits else ()) if host in run.parts}
    return [host for host, part in parts.items() if part.unfinished and not part.lacks_guard]


def restart_without(run: Run, about: AboutRun) -> str:
    """The command that starts a run that waits again, on other hosts; "" if there is none, or the run needs none.

    One without a majority gets the hosts that answer; one of `any N` hosts gets those that are free.
    """
    if run.waits is None or _parts_apart(run) or _silent_but_here(run):
        return ""
    if _may_use_others(run):
        return about.command("restart")
    if not run.waits.no_majority:
        return ""
    left = [name for name in run.hosts if name not in {*run.drained, *run.waits.hosts, run.witness}]
    return about.command("restart", "--hosts", fold(left)) if left else ""


def _may_use_others(run: Run) -> bool:
    """Whether the run waits, and `up` chose its hosts among more of them."""
    started = recent.command_of(run.run_id) if run.waits else None
    return started is not None and started.any_of


def _elsewhere(run: Run) -> str:
    """Where a run starts again that may use other hosts."""
    awaited = run.waits.hosts if run.waits else ()
    head = next((host for host, number in run.all_nodes.items() if number == run.head), None)
    return f"on hosts that are free{f', without what only {head} has saved' if head in awaited else ''}"


def describe_briefly(waits: Waits) -> str:
    return f"waiting for {fold(waits.hosts)} until {whole_seconds(rfc3339(waits.until))[DATE:]}"


def describe_unfit(run: Run, about: AboutRun) -> str:
    """The problems of the hosts that the run waits for, and what helps. "" if it waits for a host without one."""
    unfit = _awaited_unfit(run)
    if not unfit:
        return ""
    restart = about.command("restart", "--hosts", f"!{fold(unfit)}")
    return (
        f"it waits for {fold(unfit)}, not used because of {_codes(unfit)}. If you fix that in time, the run continues "
        f"by itself. Or start it again without {fold(unfit)}: `{restart}`."
    )


def describe_left_out(run: Run) -> str:
    """The problems for which the newest attempt left hosts out; "" if there are none."""
    left_out = {host: codes for host, codes in run.unfit.items() if run.parts[host].node_rank is None}
    if not left_out:
        return ""
    return f"{fold(left_out)} is not used because of {_codes(left_out)}, which only the next attempt checks again"


def _awaited_unfit(run: Run) -> Mapping[str, Sequence[str]]:
    """The problems of the hosts that the run waits for, if each of them has some."""
    hosts = run.waits.hosts if run.waits else ()
    unfit = {host: codes for host, codes in run.unfit.items() if host in hosts}
    return unfit if len(unfit) == len(hosts) else {}


def _codes(unfit: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(sorted({code for codes in unfit.values() for code in codes}))


def advise(run: Run, about: AboutRun) -> str:
    """What ends the wait, as a sentence."""
    if why := describe_no_majority(run, about):
        return why[0].upper() + why[1:]
    unfit = _awaited_unfit(run)
    if not unfit:
        text = f"If a host was rebooted: {about.command('revive')}"
        restart = restart_without(run, about)
        return f"{text}. To start it again {_elsewhere(run)}: {restart}" if restart else text
    return f"Not used: {fold(unfit)}, because of {_codes(unfit)}. If you fix that in time, the run continues by itself"
