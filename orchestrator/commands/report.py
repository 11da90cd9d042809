"""`report`: write what the hosts have recorded of a run to an HTML file and a JSON file."""

from __future__ import annotations

import json
import os
import shlex
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from .. import __version__
from ..answers.recorded import RECORD
from ..errors import UnreachableError, UsageError
from ..hosts import claims
from ..hosts.fleet import Fleet
from ..hosts.session import Refused
from ..inventory.model import Host, Inventory
from ..node.serve.figures import PATTERN
from ..output import report_file, span
from ..output.lines import Line, rfc3339
from ..output.mask import Mask
from ..output.pipeline import Sink
from ..runs import diagnose, recent, registry
from ..runs.follow import LogFilter, View, clock_ahead, span_by_clock_of
from ..ui import html
from .context import (
    credentials_of,
    find_run,
    load_inventory_of_run,
    open_fleet,
    secret_values,
    stderr_console,
    warn_of_failures,
)
from .report_data import PRIVATE, first_failure, make

LAST_LINES = 40  # of the rank that failed first
LOG_LINES = 6000  # of all streams together
LOG_LINES_OF_STREAM = 500


def report(
    run_name: str | None,
    inventory_path: str | None,
    hosts: str | None,
    output: str | None,
    as_json: bool,
    *,
    opens: bool = False,
    since: str | None = None,
    until: str | None = None,
) -> int:
    """`opens`: show the page in the browser."""
    span.parse(since, until, time.time())  # a slip is reported before any host is asked
    if opens and as_json and not output:
        raise UsageError("--open needs the page, which --json does not write without -o FILE.html")
    if output and Path(output).suffix.lower() not in ("", ".htm", ".html"):
        raise UsageError(f"-o {output}: expected a name that ends with .html. The data go to a .json file next to it.")
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        lookup = find_run(fleet, inventory, run_name, console)
        listing, run = lookup.listing, lookup.run
        secrets = secret_values(inventory, run, console)
        of_run = [host for host in inventory.machines if host.name in run.parts]
        arguments = {"run_id": run.run_id}
        answers = fleet.each(of_run, lambda _, session: session.request(RECORD, arguments), "reading its record")
        warn_of_failures(answers.failed, console)
        records = {host: answers.done[host] for host in _by_node(run) if host in answers.done}
        if not any(record.run and record.spec for record in records.values()):
            raise UnreachableError(f"no host has a record of run {run.run_id}; nothing was written")
        mask = Mask([*secrets, *credentials_of(records.values())])
        clocks = fleet.each(of_run, lambda _, session: clock_ahead(session), "reading its clock").done
        by_name = {host.name: host for host in inventory.machines}
        chosen = span_by_clock_of([by_name[name] for name in records], since, until, fleet)
        in_span = LogFilter(follow=False, since=chosen.first, until=chosen.last)
        figures = _read_lines(fleet, of_run, run, replace(in_span, grep=PATTERN), mask)
        first = first_failure(run, records)
        last_lines: list[Line] = []
        if first and first.rank is not None:
            log_filter = LogFilter(follow=False, tail=LAST_LINES, ranks=frozenset([first.rank]), stream="stderr")
            rank_lines = _read_lines(fleet, of_run, run, log_filter, mask)
            last_lines = [line for line in rank_lines if line.attempt == run.attempt]
        tail = max(4, min(LOG_LINES_OF_STREAM, LOG_LINES // (2 * run.ranks + len(of_run))))
        log = _read_lines(fleet, of_run, run, replace(in_span, tail=tail), mask)
        diagnosis = diagnose.gather_and_diagnose(run.run_id, run.parts, run.nodes, by_name, fleet, mask).as_dict()
    data = replace(
        make(run, records, clocks, figures, last_lines, diagnosis, mask, log, chosen),
        reproduce=_reproduce(run, inventory, mask),
        written_at=rfc3339(time.time()),
        version=__version__,
    )
    text = json.dumps(asdict(data), indent=2)
    if as_json:
        print(text)
    if output or not as_json:
        path = Path(output or f"{run.run_id}.html")
        write(path, html.render(asdict(data)), text + "\n")
        console.note(f"wrote {path.absolute()} and {path.with_suffix('.json').name}")
        if opens and not webbrowser.open(path.absolute().as_uri()):
            console.warning("no browser was found here; copy the file to a machine that has one")
    return UnreachableError.exit_code if listing.failed or answers.failed else 0


def _reproduce(run: registry.Run, inventory: Inventory, mask: Mask) -> str:
    """The command that starts the same run again; "" if it was not started by `up` on this machine."""
    from .up_options import UpOptions  # imported late: the user waits for the first output

    started = recent.command_of(run.run_id)
    try:
        options = UpOptions(**started.options) if started else None
    except TypeError:  # written by another version
        return ""
    if started is None or options is None:
        return ""
    names_of_private = [item.partition("=")[0] for item in options.env if PRIVATE.search(item.partition("=")[0])]
    env = tuple(item for item in options.env if item.partition("=")[0] not in names_of_private)
    command = replace(options, env=(*env, *names_of_private)).command(
        inventory.source or started.inventory, folder=Path(started.folder)
    )
    return mask.hide(f"cd {shlex.quote(started.folder)}\n{command}") if command else ""


def write(path: Path, page: str, data: str) -> None:
    """Write the page, and the data to a .json file next to it. Raises UsageError.

    Overwrites only older reports, because the default file name contains a name that a host has sent.
    """
    texts = {path: page, path.with_suffix(".json"): data}
    for file_path in texts:
        if file_path.is_file() and file_path.stat().st_size and not _is_report(file_path):
            raise UsageError(f"{file_path} exists and is not a report of ddp-orch. Give another -o FILE.html.")
    for file_path, text in texts.items():
        try:
            handle = os.open(file_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"-o {file_path}: {error.strerror}") from error


def _is_report(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return text.startswith(report_file.PAGE) or {"run_id", "timeline", "diagnosis"} <= set(json.loads(text))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _by_node(run: registry.Run) -> list[str]:
    """The hosts of the run, the head first."""
    return [*run.nodes, *sorted(run.disputed)]


def _read_lines(
    fleet: Fleet, hosts: Sequence[Host], run: registry.Run, log_filter: LogFilter, mask: Mask
) -> list[Line]:
    lines: list[Line] = []
    console = stderr_console()
    ranks = claims.ranks_of(run.parts, run.nodes)
    view = View(run.run_id, hosts, log_filter, fleet, console.warning, ranks=ranks, kept=True, mask=mask)
    view.run(Sink(lines.extend))
    warn_of_failures({host: error for host, error in view.failed.items() if isinstance(error, Refused)}, console)
    return lines
