"""`ps`: list the runs on the hosts of the inventory, as a table or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from ..answers.runs import OtherUsersRun, WarmPython
from ..checks.reliability import find_unreliable
from ..errors import UnreachableError, UsageError
from ..hosts.fleet import Fleet
from ..inventory import advice, model
from ..inventory.advice import command
from ..inventory.model import Host
from ..inventory.run_ids import made_at
from ..output.console import Console, fold, number_of, size
from ..output.lines import parse_time, rfc3339, whole_seconds
from ..runs import registry, rejoining, waiting
from ..runs.queued_runs import QueuedRun
from ..ui.text_table import print_table
from .context import load_inventory_of_run, open_fleet, stderr_console, warn_of_missing

ID_WIDTH = 20  # characters of a run id


def ps(
    inventory_path: str | None, hosts: str | None, everything: bool, as_json: bool, *, with_size: bool = False
) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, None)
    if inventory_path is None and model.default_path(os.environ) is None:
        console.note(f"no inventory here; asking the hosts of {inventory.path}, the inventory of the newest run")
    with open_fleet(inventory, short_timeout=True) as fleet:
        listing = _list_runs(fleet, inventory.machines, everything, as_json, console, sizes=with_size)
    warn_of_missing(listing, console)
    shown = [run for run in listing.runs if everything or not run.is_over]
    if not as_json:
        replaced = _replaced(shown)
        shown = [run for run in shown if run not in replaced]
    if as_json:
        runs = [{**run.as_dict(), "unreachable": list(listing.missing_hosts(run))} for run in shown]
        runs += [{**run.as_dict(), "unreachable": []} for run in listing.queued]
        print(json.dumps(runs, indent=2))
    elif shown or listing.queued:
        _print(listing, shown, time.time())
        for run in shown:
            about = advice.about(run, listing.runs, inventory.path)
            revive = about.command("revive")
            if run.without_guard:
                console.note(f"run {run.run_id} has lost {fold(run.without_guard)}; to bring it back: {revive}")
            if run.cut_off:
                console.note(f"run {run.run_id} continues without {waiting.describe_cut_off(run)}")
            waiting.note(run, console, about)
            rejoining.note(run, about.command("kill"), console)
            if forgetful := listing.forgetful(run):
                console.warning(
                    f"{fold(forgetful)} answers without a record of run {run.run_id}. If its disk is a new one, start "
                    f"the run again: {about.command('restart')}. Otherwise, see: {revive}"
                )
            _note_unfit(run, console)
            _note_waiting_spares(run, listing, inventory.path, console)
            for host, part in run.parts.items():
                for what, why in part.not_notified.items():
                    console.warning(f"run {run.run_id}: {host}: notify.{what} failed: {why}")
    elif not listing.answered:
        console.note("no host answered, so nothing is known about runs")
    else:
        finished = len(listing.runs)
        command_for_all = command("ps", "--all", inventory=inventory.path)
        console.note(
            f"no {'' if everything else 'unfinished '}run{' of yours' if listing.others else ''}"
            + (f"; to list {number_of(finished, 'finished run')}: {command_for_all}" if finished else " on these hosts")
        )
        if finished and not everything:
            _note_newest(listing.runs, inventory.path, console)
    for run in listing.runs:
        waiting.note_unaware(run, advice.about(run, listing.runs, inventory.path).command("kill"), console)
    if not as_json:
        if replaced:
            console.note(f"{number_of(len(replaced), 'earlier run')} of up --watch not shown; --json lists all")
        _print_warm(listing.warm)
        _print_others(listing.others, time.time())
    for unreliable in find_unreliable(listing.ledgers):
        last = f"{unreliable.last.what} (run {unreliable.run_id}, {whole_seconds(rfc3339(unreliable.last.at))})"
        console.warning(f"{unreliable.host} {unreliable}; the last failure: {last}")
    return UnreachableError.exit_code if listing.failed else 0


def _note_waiting_spares(run: registry.Run, listing: registry.Listing, inventory: str, console: Console) -> None:
    spares = [host for host in run.spares if host not in run.unfit]
    if run.state == "running" and run.lacks_team and spares and not run.missing_hosts:
        restart = advice.about(run, listing.runs, inventory).command("restart")
        console.note(
            f"run {run.run_id} runs on fewer hosts than it began with; {fold(spares)} takes part at the next "
            f"attempt, after a failure. To start it again with all hosts: {restart}"
        )


def _note_unfit(run: registry.Run, console: Console) -> None:
    hosts: dict[tuple[str, ...], list[str]] = {}
    for host, codes in run.unfit.items():
        hosts.setdefault(codes, []).append(host)
    for codes, some in hosts.items():
        console.note(
            f"run {run.run_id}: {fold(some)}: not used: {', '.join(codes)}. Every attempt checks it again: "
            "fix this, and the next one can use it"
        )


def _note_newest(runs: Sequence[registry.Run], inventory: str, console: Console) -> None:
    newest = runs[-1]
    about = advice.about(newest, runs, inventory)
    ended = f", {whole_seconds(rfc3339(newest.ended_at))}" if newest.ended_at is not None else ""
    why = f"; why: {about.command('diagnose')}" if newest.state in ("failed", "lost") else ""
    console.note(f"the newest: {about.run}, {newest.state}{ended}{why}")


def _replaced(runs: Sequence[registry.Run]) -> list[registry.Run]:
    """Runs that `up --watch` has stopped to start them again, without the newest of each name."""
    replaced: dict[str, list[registry.Run]] = {}
    for run in runs:
        if run.stopped_by == registry.WATCH:
            replaced.setdefault(run.name, []).append(run)
    return [run for same in replaced.values() for run in same[:-1]]


def _list_runs(
    fleet: Fleet, hosts: Sequence[Host], everything: bool, as_json: bool, console: Console, *, sizes: bool
) -> registry.Listing:
    """On a terminal, show the runs of the other hosts while a host is silent. Without one, show them on Ctrl-C."""
    on_terminal = sys.stdout.isatty() and not as_json
    listings: list[registry.Listing] = []

    def show() -> None:
        shown = [run for run in listings[-1].runs if everything or not run.is_over] if listings else []
        late = f"no answer yet from {fold(listings[-1].late)}" if listings else ""
        if listings and (shown or listings[-1].queued):
            console.note(f"{late}; the others have:")
            _print(listings[-1], shown, time.time())
        if on_terminal:
            console.status(late)

    def look(listing: registry.Listing) -> bool:
        listings.append(listing)
        if on_terminal and listing.late and len(listings) == 1:
            show()
        return False

    if on_terminal:  # a table of the progress would mix with the runs
        console.status(f"asking {number_of(len(hosts), 'host')} for their runs")
    try:
        return registry.find(
            fleet, hosts, look, "" if on_terminal else "looking for runs", others=not as_json, sizes=sizes
        )
    except KeyboardInterrupt:
        if not on_terminal and not as_json:
            show()
        raise
    finally:
        console.status("")


def _print(listing: registry.Listing, shown: Sequence[registry.Run], now: float) -> None:
    rows = [_row(run, listing.missing_hosts(run), now) for run in shown]
    _print_table(rows + [_queued_row(run, now) for run in listing.queued])


def _print_warm(warm: Mapping[str, Sequence[WarmPython]]) -> None:
    """What `run.warm` keeps on the hosts."""
    rows = [
        {
            "KEPT BY run.warm ON": host,
            "PID": str(process.pid),
            "PYTHON": process.python,
            "MODULES": " ".join(process.modules),
            "AGE": _minutes(process.age),
            "LEFT": _minutes(process.left),
            "MEMORY": f"{process.memory >> 20} MiB",
        }
        for host, kept in sorted(warm.items())
        for process in kept
    ]
    if rows:
        _print_table(rows)


def _print_others(others: Mapping[str, Sequence[OtherUsersRun]], now: float) -> None:
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, runs in sorted(others.items()):
        for run in runs:
            hosts.setdefault((run.run_id, run.user), []).append(host)
    rows = []
    for (run_id, user), on in sorted(hosts.items()):
        began = made_at(run_id)
        time_of_run = "-" if began is None else _minutes(now - began)
        rows.append({"RUN OF ANOTHER USER": run_id, "USER": user, "TIME": time_of_run, "HOSTS": fold(on)})
    if rows:
        _print_table(rows)


def _print_table(rows: Sequence[Mapping[str, str]]) -> None:
    wrapped = ("NAME", "SCRIPT", "HOSTS", "PYTHON", "MODULES")
    optional = ("NAME", "ATTEMPT", "DISK", "OUTPUTS")
    print_table(rows, wrapped=wrapped, optional=optional, widths={"RUN": ID_WIDTH}, dropped_first=("BY", "SCRIPT"))


def _row(run: registry.Run, missing_hosts: Sequence[str], now: float) -> dict[str, str]:
    return {
        "RUN": run.run_id,
        "NAME": run.name if run.name != run.run_id else "",
        "STATE": run.state,
        "ATTEMPT": str(run.attempt) if run.attempt > 1 else "",
        "TIME": _duration(run, now),
        "BY": run.by,
        "SCRIPT": run.script,
        "HOSTS": _describe_hosts(run, missing_hosts),
        **_describe_size(run),
    }


def _describe_hosts(run: registry.Run, missing_hosts: Sequence[str]) -> str:
    witness = {host for host, part in run.parts.items() if part.is_witness}
    lost, drained = {*run.without_guard, *run.cut_off}, set(run.left) | _drained_and_off(run)
    others = {"spare": set(run.spares) - lost, "lost": lost, "drained": drained, "witness": witness}
    named = [f"{what} {fold(some)}" for what, some in others.items() if some]
    if used := [host for host in run.parts if not any(host in some for some in others.values())]:
        named = [fold(used), *named]
    return ", ".join(named) + (f" (no data: {fold(missing_hosts)})" if missing_hosts else "")


def _drained_and_off(run: registry.Run) -> set[str]:
    return set(run.drained) - {part.host for part in run.parts.values()}


def _describe_size(run: registry.Run) -> dict[str, str]:
    """The bytes on all hosts together, if they were requested."""
    sizes = [part.size for part in run.parts.values() if part.size is not None]
    outputs = [measured.outputs for measured in sizes if measured.outputs is not None]
    return {
        "DISK": size(sum(measured.record for measured in sizes)) if sizes else "",
        "OUTPUTS": size(sum(outputs)) if outputs else "-" if sizes else "",
    }


def _queued_row(run: QueuedRun, now: float) -> dict[str, str]:
    return {
        "RUN": run.run_id,
        "NAME": run.name if run.name != run.run_id else "",
        "STATE": "queued",
        "ATTEMPT": "",
        "TIME": "-" if run.queued_at is None else _minutes(now - run.queued_at),
        "BY": run.by,
        "SCRIPT": run.script,
        "HOSTS": fold(run.hosts) + (f" (no answer: {fold(run.waits_for)})" if run.waits_for else ""),
        "DISK": "",
        "OUTPUTS": "",
    }


def _duration(run: registry.Run, now: float) -> str:
    """How long the run has been running, or ran; `-` if its end is unknown."""
    if not run.unfinished and run.ended_at is None:
        return "-"
    end = now if run.unfinished or run.ended_at is None else run.ended_at
    try:
        seconds = end - parse_time(run.started_at, now)
    except UsageError:  # a host may send an invalid date
        return "-"
    return _minutes(seconds)


def _minutes(seconds: float) -> str:
    minutes, hours, days = (int(max(0.0, seconds) // unit) for unit in (60, 3600, 86400))
    if days:
        return f"{days}d{hours % 24:02}h"
    return f"{hours}h{minutes % 60:02}m" if hours else f"{minutes}m{int(max(0.0, seconds)) % 60:02}s"
