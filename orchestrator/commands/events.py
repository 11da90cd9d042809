"""`events`: list what happened in a run, as its head has recorded it and the other hosts know."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from ..answers.recorded import RECORD, Record
from ..errors import UnreachableError
from ..hosts.fleet import Fleet, Results, fold_failures
from ..inventory.model import Host, Inventory
from ..output import span
from ..output.console import Console
from ..output.lines import presentable, rfc3339, whole_seconds
from ..runs import registry, timeline, waiting
from ..runs.follow import clock_ahead
from ..ui.event_rows import fold_ends
from .context import find_run, load_inventory_of_run, make_mask, open_fleet, stderr_console


def events(
    run_name: str | None,
    inventory_path: str | None,
    hosts: str | None,
    since: str | None,
    until: str | None,
    *,
    as_json: bool,
) -> int:
    console = stderr_console()
    span.parse(since, until, time.time())  # a slip is reported before any host is asked
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        lookup = find_run(fleet, inventory, run_name, console)
        mask = make_mask(inventory, lookup.run, console)
        host, record = _find_record(fleet, inventory, lookup.run, console)
        entries = timeline.history(lookup.run, record)
        ahead = clock_ahead(fleet.session(host)) if since or until else 0.0
    shown = span.parse(since, until, time.time() + ahead)
    began = entries[0].at if entries else 0.0
    rows = [
        {
            "at": rfc3339(entry.at),
            "seconds": entry.at - began,
            "kind": entry.kind,
            "what": presentable(entry.what, False, mask),
        }
        for entry in entries
        if shown.holds(entry.at)
    ]
    if as_json:
        print(json.dumps({"run_id": lookup.run.run_id, "events": rows}, indent=2))
    else:
        for row in fold_ends(rows):
            print(f"{whole_seconds(str(row['at']))}  {row['seconds']:>9.1f} s  {row['what']}")
        waiting.note(lookup.run, console)
    return 0


def _find_record(fleet: Fleet, inventory: Inventory, run: registry.Run, console: Console) -> tuple[Host, Record]:
    """The record of the head. If that does not answer: of the host that knows most. Raises UnreachableError."""

    def ask(names: Iterable[str]) -> Results[Record]:
        hosts = [host for host in inventory.machines if host.name in names]
        return fleet.each(hosts, lambda _, session: session.request(RECORD, {"run_id": run.run_id}))

    head = next((name for name, number in run.all_nodes.items() if number == run.head), None)
    answers = ask([head] if head else [])
    host, found = head, {name: record for name, record in answers.done.items() if record.spec}
    if not found:
        found = dict(ask(set(run.nodes) - {head}).done)
        host = timeline.source(run.nodes, run.head, found)
    others = ask(set(run.nodes) - {head}).done if host == head and timeline.missed_end(run) else {}
    chosen = next((each for each in inventory.hosts if each.name == host), None)
    if chosen is None:
        why = "; ".join(fold_failures(answers.failed))
        raise UnreachableError(f"no host that answers has a record of run {run.run_id}{why and ': '}{why}")
    if host != head:
        if head in answers.done:
            why = "has deleted its record"
        else:
            why = "does not answer" if head in answers.failed else "was not asked"
        knows = "these are the events that" if found[chosen.name].events else "it alone had all events. This is what"
        console.warning(f"{head or 'the head'} {why}: {knows} {host} knows")
    completed = timeline.complete(run, found[chosen.name], others.values())
    return chosen, completed or found[chosen.name]
