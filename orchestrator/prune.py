"""`prune`: remove from the hosts, at once, what `run.keep` does not keep."""

from __future__ import annotations

from dataclasses import asdict

from .console import fold_messages
from .context import chosen_inventory, open_fleet, stderr_console
from .errors import UnreachableError
from .fleet import folded


def prune(given: str, hosts: str | None) -> int:
    console = stderr_console()
    read = chosen_inventory(given, hosts)
    keep = asdict(read.run.keep)
    with open_fleet(read) as fleet:
        fleet.prepare(read.hosts)
        results = fleet.each(read.hosts, lambda _, session: session.request("prune", {"keep": keep}), "pruning")
    said = {
        host: _words(len(gone["runs"]), int(gone["unused"]), int(gone["freed"]), int(gone["left"]))
        for host, gone in results.done.items()
    }
    for line in fold_messages(said):
        console.note(line)
    for line in folded(results.failed):
        console.error(line)
    return UnreachableError.exit_code if results.failed else 0


def _words(runs: int, unused: int, freed: int, left: int) -> str:
    kept = f"{left} {'run' if left == 1 else 'runs'} that {'is' if left == 1 else 'are'} over kept"
    if not runs and not unused:
        return f"nothing to remove; {kept}"
    removed = [f"{runs} {'run' if runs == 1 else 'runs'}"] if runs else []
    removed += [f"{unused} unused {'piece' if unused == 1 else 'pieces'} of code"] if unused else []
    return f"removed {' and '.join(removed)}, {freed / 1e6:.1f} MB freed; {kept}"
