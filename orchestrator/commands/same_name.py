"""Say which of several runs a command is about, where the user may mean another one."""

from __future__ import annotations

from pathlib import Path

from ..inventory.model import Inventory
from ..output.console import Console
from ..runs import recent
from ..runs.registry import Listing, Run


def note_choice(run: Run, listing: Listing, run_name: str | None, inventory: Inventory, console: Console) -> None:
    """`run`: the one that `choice.choose` has chosen for `run_name`."""
    if run_name is None:
        _note_running_runs(run, listing, console)
    elif run_name == run.name != run.run_id:
        _note_same_name(run, listing, console)
        _note_deleted(run, listing, inventory, console)
    elif run_name == run.name and (newer := [each for each in same_name(run, listing) if each.run_id > run.run_id]):
        console.note(f"this is about run {run.run_id}; {newer[-1].run_id} ({newer[-1].state}) continues it")


def _note_running_runs(run: Run, listing: Listing, console: Console) -> None:
    """If the newest run has ended, name the runs that are still running: the user may mean one of them."""
    running = [other.run_id for other in listing.runs if other.unfinished]
    if running and not run.unfinished:
        console.note(f"run {run.run_id}, the newest, has ended ({run.state}); still running: {', '.join(running)}")


def same_name(run: Run, listing: Listing) -> list[Run]:
    """The other runs with its name, the newest last."""
    return [other for other in listing.runs if other.name == run.name and other.run_id != run.run_id]


def _note_same_name(run: Run, listing: Listing, console: Console) -> None:
    others = same_name(run, listing)
    if running := [other.run_id for other in others if other.unfinished]:
        console.note(f"this is about run {run.run_id}; also called {run.name}, and not over: {', '.join(running)}")
    elif run.unfinished and (ended := [other for other in others if other.started_at > run.started_at]):
        console.note(
            f"this is about run {run.run_id}, which is not over; a newer run called {run.name}, "
            f"{ended[-1].run_id}, has ended ({ended[-1].state})"
        )


def _note_deleted(run: Run, listing: Listing, inventory: Inventory, console: Console) -> None:
    """Name a newer run that was started here on the hosts of this inventory, and that none of them knows any more."""
    if listing.failed or not Path(inventory.path).exists():
        return
    path = str(Path(inventory.path).resolve())
    known = {other.run_id for other in listing.runs} | {other.run_id for other in listing.queued}
    for started in recent.newest():
        is_newer = started.run_id > run.run_id  # ids begin with the time
        if is_newer and started.name == run.name and started.inventory == path and started.run_id not in known:
            console.note(
                f"this is about run {run.run_id}; a newer run called {run.name}, {started.run_id}, was deleted from "
                "its hosts"
            )
            return
