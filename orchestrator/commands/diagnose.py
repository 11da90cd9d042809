"""`diagnose`: print the first cause of the failure of a run, or of a failure in log files."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..diagnosis import engine, rendering, times, transcript
from ..diagnosis.engine import Diagnosis
from ..diagnosis.transcript import LogLine
from ..errors import UnreachableError, UsageError
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..inventory import advice
from ..inventory.advice import AboutRun
from ..inventory.model import Host, Inventory
from ..node.serve.figures import PATTERN
from ..output import span
from ..output.console import Console, fold, wants_colour
from ..output.finding import SourceCode, find_nothing
from ..output.lines import Mask, rfc3339
from ..output.span import Span
from ..output.terminal import one_line
from ..runs import diagnose, local_code, recent, timeline, waiting
from ..runs.bad_loss import BadLoss
from ..runs.follow import LogFilter, View, span_by_clock_of
from .context import (
    RunLookup,
    find_run_early,
    load_inventory_of_run,
    make_mask,
    open_fleet,
    stderr_console,
    wait_for_rest,
    warn_of_unasked_hosts,
)

MAX_LOG_SIZE = 64 << 20  # bytes; of a larger log, half of this is read from each end


def diagnose_run(
    run_name: str | None,
    inventory_path: str | None,
    hosts: str | None,
    as_json: bool,
    since: str | None = None,
    until: str | None = None,
) -> int:
    """`diagnose RUN`. Exit code 4 if a host is unreachable."""
    console = stderr_console()
    span.parse(since, until, time.time())  # a slip is reported before any host is asked
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        first = final = find_run_early(fleet, inventory, run_name, console)
        warn_of_unasked_hosts(first.run, first.listing, console)
        early = None
        if as_json and first.listing.late:  # one document, from the answers of all hosts
            final = wait_for_rest(first, inventory, run_name, console)
        mask = make_mask(inventory, final.run, console)
        chosen = span_by_clock_of(_hosts_of(final, inventory), since, until, fleet)
        diagnosis = _diagnose(final, inventory, fleet, mask, chosen)
        if final.listing.late:
            console.note(f"no answer yet from {fold(first.listing.late)}; the others show:")
            _show(diagnosis, final, inventory, as_json, mask, console)
            sys.stdout.flush()
            early = diagnosis
            final = wait_for_rest(first, inventory, run_name, console)
            if _has_news(first, final):
                mask = make_mask(inventory, final.run, console)
                diagnosis = _diagnose(final, inventory, fleet, mask, chosen)
        bad_loss = "" if diagnosis.findings else _find_bad_loss(final, inventory, fleet, mask, chosen)
    answered_late = first.listing.late & final.listing.answered
    if early is None:
        _show(diagnosis, final, inventory, as_json, mask, console)
    elif answered_late:
        changes = diagnosis != early or final.run.run_id != first.run.run_id
        what = "this changes the diagnosis:" if changes else "this does not change the diagnosis"
        console.note(f"{fold(answered_late)} has answered; {what}")
        if changes:
            _show(diagnosis, final, inventory, as_json, mask, console)
    if bad_loss:
        console.warning(bad_loss)
    return UnreachableError.exit_code if final.listing.failed else 0


def _find_bad_loss(lookup: RunLookup, inventory: Inventory, fleet: Fleet, mask: Mask, chosen: Span) -> str:
    """What `up` warns of after a success; "" if the run has not succeeded, or its losses are finite."""
    run = lookup.run
    if run.state != "succeeded":
        return ""
    log_filter = LogFilter(follow=False, since=chosen.first, until=chosen.last, grep=PATTERN)
    ranks = claims.ranks_of(run.parts, run.nodes)
    view = View(run.run_id, _hosts_of(lookup, inventory), log_filter, fleet, lambda _: None, ranks=ranks, mask=mask)
    losses = BadLoss()
    view.run(losses)
    return one_line(mask.hide(losses.describe()))


def _has_news(first: RunLookup, final: RunLookup) -> bool:
    return final.run.run_id != first.run.run_id or final.run.parts.keys() != first.run.parts.keys()


def _hosts_of(lookup: RunLookup, inventory: Inventory) -> list[Host]:
    """The hosts that have answered, the head first."""
    hosts = {host.name: host for host in inventory.machines}
    return [hosts[name] for name in lookup.run.nodes if name in hosts]


def _diagnose(lookup: RunLookup, inventory: Inventory, fleet: Fleet, mask: Mask, chosen: Span) -> Diagnosis:
    run = lookup.run
    hosts = {host.name: host for host in inventory.machines}
    return diagnose.gather_and_diagnose(run.run_id, run.parts, run.nodes, hosts, fleet, mask, chosen)


def _show(
    diagnosis: Diagnosis, lookup: RunLookup, inventory: Inventory, as_json: bool, mask: Mask, console: Console
) -> None:
    run = lookup.run
    about = advice.about(run, lookup.listing.runs, inventory.path)
    started = recent.started(run.run_id)
    failed_at = diagnosis.findings[0].at if diagnosis.findings else None
    find_source = local_code.finder(run.run_id, started.code if started else None, failed_at)
    _print(diagnosis, as_json, mask, about, find_source)
    if not as_json and (run.unfinished or not diagnosis.findings):
        what_to_do = ""
        if run.state == "waiting":
            for_whom = waiting.describe(run.waits.hosts, rfc3339(run.waits.until)) if run.waits else "a host"
            what_to_do = f" for {for_whom}. {waiting.advise(run, about)}"
        elif run.suspects:
            what_to_do = (
                f": the others do not hear {fold(run.suspects)}, or not on the network of the ranks. If that lasts, "
                "the host counts as lost"
            )
        elif run.unfinished:
            what_to_do = (
                f". If it hangs: {about.command('top')} shows which ranks are silent. To find out where they are, end "
                f"them with {about.of_all('signal', about.run, 'ABRT')}, then diagnose again. With run.stall_timeout, "
                "ddp-orch does this by itself."
            )
        console.note(f"run {run.run_id} {timeline.ENDED.get(run.state, f'is {run.state}')}{what_to_do}")


def diagnose_logs(paths: Sequence[str], as_json: bool, since: str | None = None, until: str | None = None) -> int:
    """`diagnose --log FILE...`. Exit code 0, also if the logs show a failure."""
    _print(diagnose_files(paths, span.parse(since, until, time.time())), as_json, Mask(), None)
    return 0


def diagnose_files(paths: Sequence[str], chosen: Span = span.ALL) -> Diagnosis:
    """A time without a zone is of the zone of this process, so that it can be compared with other times."""
    lines = transcript.parse_logs([(path, _read_log(path)) for path in paths])
    return engine.diagnose(_select(lines, chosen) if chosen.is_limited else list(map(_to_unix_time, lines)))


def _to_unix_time(line: LogLine) -> LogLine:
    if line.at is None or not line.is_local or times.lacks_year(line.at):
        return line
    return replace(line, at=times.from_local(line.at), is_local=False)


def _select(lines: Sequence[LogLine], chosen: Span) -> list[LogLine]:
    """The lines of a time. Raises UsageError if none has one. A time without a year is of this year."""
    if all(line.at is None for line in lines):
        raise UsageError("--since and --until need logs with times, such as those of `ddp-orch logs --timestamps`")
    shift = times.seconds_to_year(time.gmtime().tm_year)
    known = [replace(line, at=line.at + shift * times.lacks_year(line.at)) for line in lines if line.at is not None]
    selected = [line for line in map(_to_unix_time, known) if line.at is not None and chosen.holds(line.at)]
    return [replace(line, number=number) for number, line in enumerate(selected)]


def _read_log(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        with Path(path).open("rb") as file:
            begin = file.read(MAX_LOG_SIZE // 2)
            size = file.seek(0, 2)
            file.seek(max(len(begin), size - MAX_LOG_SIZE // 2))
            data = begin + file.read()
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror}") from error
    return data.decode("utf-8", errors="replace")


def _print(
    diagnosis: Diagnosis,
    as_json: bool,
    mask: Mask,
    about: AboutRun | None,
    find_source: Callable[[str], SourceCode | None] = find_nothing,
) -> None:
    diagnosis = rendering.hide_secrets(diagnosis, mask)
    if as_json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
    elif not diagnosis.findings and not diagnosis.earlier:
        print("no failure found")
    else:
        columns = min(rendering.WIDTH, shutil.get_terminal_size((rendering.WIDTH, 24)).columns)
        read_more = rendering.where_to_read_more(diagnosis, about)
        colour = wants_colour(sys.stdout, os.environ)
        lines = rendering.render_text(diagnosis, columns, read_more, colour=colour, find_source=find_source, whole=True)
        print("\n".join(lines))
