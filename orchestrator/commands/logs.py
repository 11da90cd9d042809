"""`logs`: what the ranks of a run wrote, chosen on the hosts, shown here or written to files."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import UnreachableError, UsageError
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..inventory import advice
from ..inventory.advice import AboutRun
from ..inventory.model import Inventory
from ..output import lines
from ..output.console import Console, fold
from ..output.lines import Line, Mask
from ..output.pipeline import Pipeline, Sink, Stage
from ..runs import attach, printing, registry
from ..runs.follow import LogFilter, View, clock_ahead
from ..runs.log_files import LogFiles
from .context import (
    RunLookup,
    find_run_early,
    load_inventory_of_run,
    make_mask,
    open_fleet,
    select_hosts,
    stderr_console,
    wait_for_rest,
    warn_of_failures,
    warn_of_unasked_hosts,
)

T = TypeVar("T")
EVERYTHING = LogFilter(follow=False)


@dataclass(frozen=True, kw_only=True)
class Logs:
    """`logs` as it was asked for."""

    run: str | None = None
    inventory: str | None = None
    follow: bool = False
    tail: int | None = None
    host: tuple[str, ...] = ()
    rank: str | None = None
    stream: str | None = None
    attempt: int | None = None
    since: str | None = None
    until: str | None = None
    grep: str | None = None
    timestamps: bool = False
    fold: bool = False
    as_json: bool = False
    output: str | None = None


def logs(wanted: Logs) -> int:
    if wanted.as_json and (wanted.fold or wanted.output):
        raise UsageError("--json cannot be combined with --fold or --output")
    console = stderr_console()
    choice = _choice(wanted, time.time())
    read = load_inventory_of_run(wanted.inventory, None, wanted.run)
    if wanted.host:
        read = select_hosts(read, ",".join(wanted.host), "--host")
    with open_fleet(read, short_timeout=True) as fleet:
        found = _find_run(fleet, read, wanted, console)
        run, listing = found.run, found.listing
        about = advice.about(run, listing.runs, read.path)
        if choice.ranks is not None and min(choice.ranks) >= run.ranks:
            raise UsageError(f"run {run.run_id} has no such ranks; ranks are numbered from 0, and it has {run.ranks}")
        hosts = {host.name: host for host in read.hosts}
        late = [name for name in listing.late if name in run.unheard]
        asked = [hosts[name] for name in [*run.parts, *late] if name in hosts]
        if wanted.since or wanted.until:  # `5m` ago is 5 minutes before now, whatever the hosts' clocks say
            ahead = fleet.each(asked[:1], lambda _, session: clock_ahead(session)).done
            choice = _choice(wanted, time.time() + next(iter(ahead.values()), 0.0))
        ranks_of = claims.ranks_of(run.parts, run.all_nodes)
        mask = make_mask(read, run, console)
        view = View(
            run.run_id, asked, choice, fleet, console.warning, sys.stdout.isatty(), ranks_of, late=late, mask=mask
        )
        here = sum(run.parts[host.name].nproc for host in asked if host.name in run.parts)
        here = run.ranks if late else here
        bell = attach.Bell(read.notify.bell and wanted.follow, console)
        ranks = len(choice.ranks) if choice.ranks else min(run.ranks, here)
        try:
            if wanted.output:
                _to_files(view, choice, list(run.parts), mask, Path(wanted.output), console)
            else:
                shown = _to_screen(view, run, about, choice, ranks, mask, wanted, bell)
                if not shown and not view.failed:
                    console.note(f"run {run.run_id}: no {'output' if choice == EVERYTHING else 'matching line'}")
            if not wanted.follow:
                found = wait_for_rest(found, read, wanted.run, console)
        except KeyboardInterrupt:
            if wanted.follow and run.unfinished:
                console.note(f"the run continues; to stop it: {about.command('kill')}")
            return 0  # only the looking ends
        if wanted.follow:
            bell.ring()
            resume = about.of_all("up", "--name", run.name)
            return attach.conclude(
                run.run_id, about, run.all_nodes, view, console, resume=f"{resume} -- SCRIPT ARGS..."
            )
    if found.run.run_id != run.run_id:
        newer = advice.about(found.run, found.listing.runs, read.path)
        console.warning(f"{fold(found.run.parts)} has a newer run, {found.run.run_id}: {newer.command('logs')}")
    failed = {host: error for host, error in view.failed.items() if host not in found.listing.failed}
    warn_of_failures(failed, console)
    return UnreachableError.exit_code if found.listing.failed or failed else 0


def _find_run(fleet: Fleet, read: Inventory, wanted: Logs, console: Console) -> RunLookup:
    found = find_run_early(fleet, read, wanted.run, console, registry.is_known if wanted.follow else registry.is_found)
    if not wanted.host:
        warn_of_unasked_hosts(found.run, found.listing, console)
    late = fold(found.listing.late)
    if late and wanted.output:
        console.note(f"no answer yet from {late}; waiting for it, because files contain all lines in order of time")
        return wait_for_rest(found, read, wanted.run, console)
    if late:
        console.note(f"no answer yet from {late}; the others have:")
    return found


def _to_screen(
    view: View,
    run: registry.Run,
    about: AboutRun,
    choice: LogFilter,
    ranks: int,
    mask: Mask,
    wanted: Logs,
    bell: attach.Bell,
) -> int:
    """The number of lines that were chosen."""
    # whoever asks for torchrun's own lines, or for those with a certain text, wants all of them
    quiet = wanted.stream is None and wanted.grep is None
    printer = printing.printer(
        list(run.all_nodes),
        mask,
        as_json=wanted.as_json,
        timestamps=wanted.timestamps,
        quiet=quiet,
        all_of_it=about.command("logs", "--stream", "agent"),
        fold_ranks=ranks if wanted.fold else None,
    )

    chosen = _Chosen(choice)
    view.run(Pipeline((bell, chosen, printer)))
    return chosen.count


def _to_files(view: View, choice: LogFilter, hosts: Sequence[str], mask: Mask, folder: Path, console: Console) -> None:
    files = LogFiles(folder, hosts, mask)
    try:
        view.run(Pipeline((_Chosen(choice), Sink(files.add))))
    finally:
        files.close()
    console.note(f"wrote {files.lines} lines to {files.count} files in {folder}; all lines merged: {files.merged}")


def _choice(wanted: Logs, now: float) -> LogFilter:
    try:
        re.compile(wanted.grep or "")
    except re.error as error:
        raise UsageError(f"--grep {wanted.grep}: invalid regular expression: {error}") from error
    return LogFilter(
        follow=wanted.follow,
        tail=wanted.tail,
        ranks=_read("--rank", wanted.rank, lines.parse_ranks),
        attempt=wanted.attempt,
        stream=wanted.stream,
        since=_read("--since", wanted.since, lambda text: lines.parse_time(text, now)),
        until=_read("--until", wanted.until, lambda text: lines.parse_time(text, now)),
        grep=wanted.grep,
    )


def _read(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if text is None else parse(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error


class _Chosen(Stage):
    """Of what the hosts sent the lines that were asked for: a host sends whole pieces, and all states of a bar."""

    def __init__(self, choice: LogFilter) -> None:
        self.count = 0
        self._takes_all = choice.since is None and choice.until is None and choice.grep is None
        self._since = -math.inf if choice.since is None else choice.since
        self._until = math.inf if choice.until is None else choice.until
        self._search = re.compile(choice.grep or "").search

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if not self._takes_all:
            lines = [line for line in lines if self._since <= line.at <= self._until and self._search(line.text)]
        self.count += len(lines)
        return lines
