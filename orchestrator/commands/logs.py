"""`logs`: show the output of a run, or write it to files. The hosts filter it."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UnreachableError, UsageError
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..inventory import advice, model
from ..inventory.advice import AboutRun
from ..inventory.model import Host, Inventory
from ..output import lines
from ..output.console import Console, fold
from ..output.lines import Line, Mask
from ..output.pipeline import Pipeline, Sink, Stage
from ..output.terminal import one_line
from ..runs import attach, choice, conclusion, gpu_use, printing, registry, rejoining, waiting
from ..runs.bad_loss import BadLoss
from ..runs.follow import LogFilter, View, span_by_clock_of
from ..runs.log_files import LogFiles
from ..runs.revive import Reviver
from ..runs.silence import Silence
from ..runs.status_line import StatusLine
from .context import (
    RunLookup,
    command_to_resume,
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
from .options import parse_option

UNFILTERED = LogFilter(follow=False)


@dataclass(frozen=True, kw_only=True)
class LogsOptions:
    """The options of `logs`."""

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
    show_all: bool = False
    as_json: bool = False
    output: str | None = None


@dataclass(frozen=True)
class _Shown:
    """A run, and which of its lines are shown."""

    run: registry.Run
    about: AboutRun
    hosts: Sequence[Host]
    log_filter: LogFilter
    ranks: int
    """How many ranks may print the same line."""
    mask: Mask


def logs(options: LogsOptions) -> int:
    if options.as_json and (options.fold or options.output):
        raise UsageError("--json cannot be combined with --fold or --output")
    console = stderr_console()
    log_filter = _make_filter(options, time.time())
    inventory = load_inventory_of_run(options.inventory, None, options.run)
    if options.host:
        inventory = select_hosts(inventory, ",".join(options.host), "--host")
    with open_fleet(inventory, short_timeout=True) as fleet:
        lookup = _find_run(fleet, inventory, options, console)
        run = lookup.run
        about = advice.about(run, lookup.listing.runs, inventory.path)
        _require_ranks(run, log_filter)
        hosts = {host.name: host for host in inventory.machines}
        late = [name for name in lookup.listing.late if name in run.missing_hosts]
        asked_hosts = [hosts[name] for name in [*run.parts, *late] if name in hosts]
        chosen = span_by_clock_of(asked_hosts, options.since, options.until, fleet)
        log_filter = replace(log_filter, since=chosen.first, until=chosen.last)
        mask = make_mask(inventory, run, console)
        ranks = _count_ranks(run, asked_hosts, late, log_filter)
        shown = _Shown(run, about, asked_hosts, log_filter, ranks, mask)
        view = make_view(run, asked_hosts, late, log_filter, inventory, fleet, mask, console)
        notify = inventory.notify
        name = run.name if notify.desktop and options.follow else ""
        bell = attach.Bell(notify.bell and options.follow, console, name)
        losses = BadLoss()
        watching: list[Stage] = [bell, losses]
        if options.follow:
            waiting.note(run, console, about)
            if run.unfinished and _shows_all(options):
                watching.insert(0, Silence(ranks, about, console.note, view.is_cut_off))
        try:
            if options.output:
                _to_files(view, shown, Path(options.output), console)
            else:
                line_count = _to_screen(view, shown, options, Pipeline(watching), fleet, console)
                if not line_count and not view.failed:
                    console.note(f"run {run.run_id}: no {'output' if log_filter == UNFILTERED else 'matching line'}")
            if not options.follow:
                lookup = wait_for_rest(lookup, inventory, options.run, console)
        except KeyboardInterrupt:
            if not options.follow:
                raise
            if run.unfinished:
                console.note(f"the run continues; to stop it: {about.command('kill')}")
            return 0
        if not options.follow:
            rejoining.note(lookup.run, about.command("kill"), console)
        else:
            bell.ring()
            resume = command_to_resume(run, about)
            doubt = one_line(mask.hide(losses.describe()))
            return conclusion.conclude(
                run.run_id,
                about,
                run.all_nodes,
                view,
                console,
                resume=resume,
                is_replaced=lookup.listing.has_newer(run),
                doubt=doubt,
                without_record=lookup.listing.without_record(run),
            )
    if lookup.run.run_id != run.run_id:
        _warn_of_newer_run(lookup, inventory, console)
    failed = {host: error for host, error in view.failed.items() if host not in lookup.listing.failed}
    warn_of_failures(failed, console)
    return UnreachableError.exit_code if lookup.listing.failed or failed else 0


def _shows_all(options: LogsOptions) -> bool:
    """Whether the lines of all ranks are shown to people."""
    chosen = (options.host, options.rank, options.stream, options.attempt, options.until, options.grep)
    return not any(chosen) and not options.as_json and not options.output


def _require_ranks(run: registry.Run, log_filter: LogFilter) -> None:
    """Raises UsageError if the run has none of the ranks."""
    if log_filter.ranks is not None and min(log_filter.ranks) >= run.ranks:
        ranks_of_run = "only rank 0" if run.ranks == 1 else f"ranks 0 to {run.ranks - 1}"
        raise UsageError(f"run {run.run_id} has no such rank; it has {ranks_of_run}")


def make_view(
    run: registry.Run,
    hosts: Sequence[Host],
    late: Sequence[str],
    log_filter: LogFilter,
    inventory: Inventory,
    fleet: Fleet,
    mask: Mask,
    console: Console,
) -> View:
    reviver = Reviver(run.run_id, run.all_nodes, inventory.machines, fleet, console.note, console.warning)
    return View(
        run.run_id,
        hosts,
        log_filter,
        fleet,
        console.warning,
        sys.stdout.isatty(),
        claims.ranks_of(run.parts, run.all_nodes),
        late=late,
        mask=mask,
        revive=reviver.revive if run.unfinished else None,
        note=console.note,
        find_host=lambda name: model.find_new_host(inventory, name, os.environ),
    )


def _warn_of_newer_run(lookup: RunLookup, inventory: Inventory, console: Console) -> None:
    command = advice.about(lookup.run, lookup.listing.runs, inventory.path).command("logs")
    console.warning(f"{fold(lookup.run.parts)} has a newer run, {lookup.run.run_id}. To see its output: {command}")


def _count_ranks(run: registry.Run, hosts: Sequence[Host], late: Sequence[str], log_filter: LogFilter) -> int:
    """See `_Shown.ranks`."""
    if log_filter.ranks:
        return len(log_filter.ranks)
    if late:
        return run.ranks
    return min(run.ranks, sum(run.parts[host.name].nproc for host in hosts if host.name in run.parts))


def _find_run(fleet: Fleet, inventory: Inventory, options: LogsOptions, console: Console) -> RunLookup:
    lookup = find_run_early(
        fleet, inventory, options.run, console, choice.is_known if options.follow else choice.is_found
    )
    if not options.host:
        warn_of_unasked_hosts(lookup.run, lookup.listing, console)
    late = fold(lookup.listing.late)
    if late and options.output:
        console.note(
            f"no answer yet from {late}; waiting for it, because files contain the lines of all hosts, ordered by time"
        )
        return wait_for_rest(lookup, inventory, options.run, console)
    if late:
        console.note(f"no answer yet from {late}; the others have:")
    return lookup


def _to_screen(view: View, shown: _Shown, options: LogsOptions, watching: Stage, fleet: Fleet, console: Console) -> int:
    """Print the lines. Returns their number."""
    run, about, ranks = shown.run, shown.about, shown.ranks
    # with --stream agent or --grep, torchrun's stack traces are not shortened
    quiet = options.stream is None and options.grep is None and not options.show_all
    # warnings are hidden only if the lines that tell of a failure are in sight too
    hides = quiet and not options.host and shown.log_filter.ranks is None and shown.log_filter.until is None
    status_line = _make_status_line(run, ranks, console) if options.follow and run.unfinished else None
    printer = printing.make_printer(
        list(run.all_nodes),
        shown.mask,
        as_json=options.as_json,
        timestamps=options.timestamps,
        quiet=quiet,
        is_tail=options.tail is not None or options.since is not None,
        full_output_command=about.command("logs", "--stream", "agent"),
        fold_ranks=ranks if options.fold else None,
        fold_start=ranks if hides and options.tail is None and options.since is None else None,
        describe_hidden=printing.describe_hidden(console, about) if hides else None,
        status_line=status_line,
    )
    counter = _Filter(shown.log_filter)
    with gpu_use.watch(run.run_id, shown.hosts, fleet, status_line.show_gpu_use if status_line else None):
        view.run(Pipeline((watching, counter, printer)))
    return counter.count


def _make_status_line(run: registry.Run, ranks: int, console: Console) -> StatusLine | None:
    try:
        age = time.time() - lines.parse_time(run.started_at, time.time())
    except UsageError:  # a host may send an invalid date
        age = 0.0
    return printing.make_status_line(console, ranks, time.monotonic() - max(0.0, age))


def _to_files(view: View, shown: _Shown, folder: Path, console: Console) -> None:
    files = LogFiles(folder, list(shown.run.parts), shown.mask)
    try:
        view.run(Pipeline((_Filter(shown.log_filter), Sink(files.add))))
    finally:
        files.close()
    console.note(f"wrote {files.lines} lines to {files.count} files in {folder}; all lines merged: {files.merged}")


def _make_filter(options: LogsOptions, now: float) -> LogFilter:
    try:
        re.compile(options.grep or "")
    except re.error as error:
        raise UsageError(f"--grep {options.grep}: invalid regular expression: {error}") from error
    return LogFilter(
        follow=options.follow,
        tail=options.tail,
        ranks=parse_option("--rank", options.rank, lines.parse_ranks),
        attempt=options.attempt,
        stream=options.stream,
        since=parse_option("--since", options.since, lambda text: lines.parse_time(text, now)),
        until=parse_option("--until", options.until, lambda text: lines.parse_time(text, now)),
        grep=options.grep,
    )


class _Filter(Stage):
    """Drops lines that do not match: hosts send whole pieces of output, and all states of a progress bar."""

    def __init__(self, log_filter: LogFilter) -> None:
        self.count = 0
        self._takes_all = log_filter.since is None and log_filter.until is None and log_filter.grep is None
        self._since = -math.inf if log_filter.since is None else log_filter.since
        self._until = math.inf if log_filter.until is None else log_filter.until
        self._search = re.compile(log_filter.grep or "").search

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if not self._takes_all:
            lines = [line for line in lines if self._since <= line.at <= self._until and self._search(line.text)]
        self.count += len(lines)
        return lines
