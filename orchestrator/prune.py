"""`prune`: remove from the hosts, at once, what `run.keep` does not keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .console import fold_messages, size
from .context import chosen_inventory, open_fleet, stderr_console
from .errors import UnreachableError
from .fleet import folded

SHOWN = 3  # runs named of many


def prune(given: str | None, hosts: str | None, *, force: bool) -> int:
    console = stderr_console()
    read = chosen_inventory(given, hosts)
    keep = asdict(read.run.keep)
    with open_fleet(read) as fleet:
        fleet.prepare(read.hosts)
        arguments = {"keep": keep, "force": force}
        results = fleet.each(read.hosts, lambda _, session: session.request("prune", arguments), "pruning")
    said = {
        host: _words(len(gone["runs"]), int(gone["unused"]), int(gone["freed"]), int(gone["left"]))
        for host, gone in results.done.items()
    }
    for line in fold_messages(said):
        console.note(line)
    for line in fold_messages({host: kept for host, gone in results.done.items() if (kept := unfetched(gone))}):
        console.warning(line)
    for line in folded(results.failed):
        console.error(line)
    return UnreachableError.exit_code if results.failed else 0


def unfetched(answer: Mapping[str, Any]) -> str:
    """What a host says of runs that it only keeps because their files were not fetched; "" when there are none."""
    runs = answer["unfetched"]
    if not runs:
        return ""
    named = ", ".join(runs[-SHOWN:]) + (f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else "")
    kept = "a run is" if len(runs) == 1 else f"{len(runs)} runs are"
    return (
        f"{kept} kept longer than run.keep says ({size(answer['unfetched_bytes'])}), with files written outside "
        f"$DDP_ORCH_OUTPUT_DIR that were not fetched: {named}. "
        "Fetch them with `ddp-orch fetch RUN`, or delete them with `ddp-orch prune --force`"
    )


def _words(runs: int, unused: int, freed: int, left: int) -> str:
    kept = f"{left} {'run' if left == 1 else 'runs'} that {'is' if left == 1 else 'are'} over kept"
    if not runs and not unused:
        return f"nothing to remove; {kept}"
    removed = [f"{runs} {'run' if runs == 1 else 'runs'}"] if runs else []
    removed += [f"{unused} unused {'piece' if unused == 1 else 'pieces'} of code"] if unused else []
    return f"removed {' and '.join(removed)}, {freed / 1e6:.1f} MB freed; {kept}"
