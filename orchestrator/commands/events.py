"""`events`: list what happened in a run, as its head has recorded it."""

from __future__ import annotations

import json
import time

from ..answers.recorded import RECORD
from ..errors import OrchError, UnreachableError
from ..hosts.fleet import Fleet
from ..inventory.model import Host, Inventory
from ..output import span
from ..output.lines import presentable, rfc3339, whole_seconds
from ..runs import registry, timeline
from ..runs.follow import clock_ahead
from ..ui.event_rows import fold_ends
from .context import find_run, load_inventory_of_run, make_mask, open_fleet, stderr_console


def events(
    run_name: str | None, inventory_path: str | None, since: str | None, until: str | None, *, as_json: bool
) -> int:
    console = stderr_console()
    span.parse(since, until, time.time())  # a slip is reported before any host is asked
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        lookup = find_run(fleet, inventory, run_name, console)
        mask = make_mask(inventory, lookup.run, console)
        head = _find_head(inventory, lookup.run)
        entries = _ask_head(fleet, head, lookup.run)
        ahead = clock_ahead(fleet.session(head)) if since or until else 0.0
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
    return 0


def _find_head(inventory: Inventory, run: registry.Run) -> Host:
    """Only the head has all events."""
    head = next((name for name, number in run.all_nodes.items() if number == run.head), None)
    host = next((host for host in inventory.hosts if host.name == head), None)
    if host is None:
        raise UnreachableError(f"the head of run {run.run_id} is not in {inventory.path}; only it knows the events")
    return host


def _ask_head(fleet: Fleet, head: Host, run: registry.Run) -> list[timeline.Entry]:
    """Raises UnreachableError if the head does not answer."""
    try:
        record = fleet.session(head).request(RECORD, {"run_id": run.run_id})
    except OrchError as error:
        raise UnreachableError(f"{head.name}, the head of run {run.run_id}, knows the events: {error}") from error
    names = [node.host for node in record.spec.nodes] if record.spec else []
    return timeline.entries(record.events, names)
