"""`prune`: remove from the hosts, at once, what `run.keep` does not keep; output folders after a question."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..answers.files import OUTPUT_FOLDERS, PRUNE, REMOVE_OUTPUTS, Pruned
from ..errors import UnreachableError, UsageError
from ..hosts.fleet import fold_failures
from ..inventory import advice
from ..inventory.run_ids import RUN_ID, SUFFIX
from ..output.console import fold_messages, number_of, size
from ..runs import registry
from ..runs.launch import describe_unfetched
from .context import load_inventory, open_fleet, stderr_console


def prune(given: str | None, hosts: str | None, *, force: bool) -> int:
    console = stderr_console()
    read = load_inventory(given, hosts)
    keep = read.run.keep.on_hosts()
    with open_fleet(read) as fleet:
        fleet.prepare(read.hosts)
        arguments = {"keep": keep, "force": force}
        results = fleet.each(read.hosts, lambda _, session: session.request(PRUNE, arguments), "pruning")
    said = {host: _words(gone) for host, gone in results.done.items()}
    for line in fold_messages(said):
        console.note(line)
    for line in fold_messages(
        {host: kept for host, gone in results.done.items() if (kept := describe_unfetched(gone, read.path))}
    ):
        console.warning(line)
    for line in fold_failures(results.failed):
        console.error(line)
    return UnreachableError.exit_code if results.failed else 0


def _words(answer: Pruned) -> str:
    runs, outputs = len(answer.runs), len(answer.outputs)
    unused, freed, left = answer.unused, answer.freed, answer.left
    kept = f"kept {number_of(left, 'finished run')}"
    if not runs and not outputs and not unused:
        return f"nothing to remove; {kept}"
    removed = [number_of(runs, "run")] if runs else []
    removed += [number_of(outputs, "output folder")] if outputs else []
    removed += [number_of(unused, "unused code folder")] if unused else []
    return f"removed {', '.join(removed)}, {freed / 1e6:.1f} MB freed; {kept}"


# --- output folders


@dataclass(frozen=True)
class Folder:
    """The output folder of a run on one host."""

    name: str
    host: str
    bytes: int
    age: float
    """Seconds since something in it was written."""
    in_use: bool


def prune_outputs(given: str | None, hosts: str | None, named: Collection[str], *, yes: bool) -> int:
    """Delete output folders: those of `named` runs, else of all runs that were started without a name."""
    console = stderr_console()
    read = load_inventory(given, hosts)
    with open_fleet(read) as fleet:
        fleet.prepare(read.hosts)
        listed = fleet.each(read.hosts, lambda _, session: session.request(OUTPUT_FOLDERS, {}).folders, "looking")
        folders = [
            Folder(one.name, host, one.bytes, one.age, one.in_use)
            for host, found in sorted(listed.done.items())
            for one in found
        ]
        for line in fold_failures(listed.failed):
            console.error(line)
        if shared := read.run.output:
            console.note(f"outputs in run.output ({shared}) are not deleted")
        names_of_folders = {folder.name for folder in folders}
        if set(named) - names_of_folders:
            known = registry.find(fleet, read.hosts).runs
            named = {folder_of(one, names_of_folders, known) for one in named}
        chosen, kept = choose(folders, named, read.path)
        for line in kept:
            console.note(line)
        if not chosen:
            console.note("no outputs to delete")
            return UnreachableError.exit_code if listed.failed else 0
        sys.stdout.write(table(chosen))
        sys.stdout.flush()
        if not (yes or _ask(chosen)):
            console.note("nothing was deleted" + ("" if sys.stdin.isatty() else "; give --yes (no terminal to ask on)"))
            return UsageError.exit_code
        names: dict[str, list[str]] = {}
        for folder in chosen:
            names.setdefault(folder.host, []).append(folder.name)
        removed = fleet.each(
            [host for host in read.hosts if host.name in names],
            lambda host, session: session.request(REMOVE_OUTPUTS, {"names": names[host.name]}),
            "deleting",
        )
    for line in fold_failures(removed.failed):
        console.error(line)
    left = {
        host: f"not deleted: {', '.join(missing)}; a run uses it, or it has files of another user"
        for host, answer in removed.done.items()
        if (missing := sorted(set(names[host]) - set(answer.removed)))
    }
    for line in fold_messages(left):
        console.warning(line)
    freed = sum(max(0, answer.freed) for answer in removed.done.values())
    count = sum(len(set(answer.removed) & set(names[host])) for host, answer in removed.done.items())
    console.note(f"deleted {number_of(count, 'output folder')}, {size(freed)} freed")
    return UnreachableError.exit_code if listed.failed or removed.failed else 0


def folder_of(wanted: str, folders: Collection[str], known: Iterable[registry.Run]) -> str:
    """The output folder of the run with this name or id, or of the only one whose id begins or ends so.

    A folder outlives the record of its run. Raises UsageError.
    """
    if wanted in folders:
        return wanted
    of_id = {run.run_id: run for run in known}
    ids = {*of_id, *filter(RUN_ID.fullmatch, folders)}
    matches = [run.run_id for run in of_id.values() if wanted in (run.name, run.run_id)][-1:] or sorted(
        one for one in ids if wanted and (one.startswith(wanted) or (len(wanted) >= SUFFIX and one.endswith(wanted)))
    )
    if len(matches) > 1:
        raise UsageError(f"--run {wanted!r} matches several runs: {', '.join(matches)}; give more of the id")
    run = of_id.get(matches[0]) if matches else None
    shared = next((path for part in run.parts.values() if (path := part.shared_output)), None) if run else None
    if shared:
        raise UsageError(f"the outputs of run {matches[0]} are in {shared} (run.output), which prune does not delete")
    folder = run.name if run else matches[0] if matches else wanted
    if folder not in folders:
        raise UsageError(f"--run {wanted}: no host has outputs of it")
    return folder


def choose(folders: Iterable[Folder], named: Collection[str], inventory: str) -> tuple[list[Folder], list[str]]:
    """What is to be deleted, and what to say of the rest. Never the outputs of a run that is not over."""
    wanted = [folder for folder in folders if folder.name in named or (not named and RUN_ID.fullmatch(folder.name))]
    running = sorted({folder.name for folder in folders if folder.in_use})
    chosen = [folder for folder in wanted if folder.name not in running]
    kept = [f"in use, not deleted: {', '.join(running)}"] if len(chosen) < len(wanted) else []
    rest = {folder.name: 0 for folder in folders if folder not in wanted and folder.name not in running}
    if rest and not named:
        total = sum(folder.bytes for folder in folders if folder.name in rest)
        kept.append(
            f"not deleted, because they have a name: {', '.join(sorted(rest))} ({size(total)}); "
            f"to delete one: {advice.command('prune', '--outputs', '--run', min(rest), inventory=inventory)}"
        )
    return sorted(chosen, key=lambda folder: (-folder.age, folder.host)), kept


def table(folders: Iterable[Folder]) -> str:
    rows = [("RUN", "HOST", "SIZE", "LAST WRITTEN")]
    rows += [(one.name, one.host, size(one.bytes), _age(one.age)) for one in folders]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def _ask(chosen: Collection[Folder]) -> bool:
    import click

    if not sys.stdin.isatty():
        return False
    what = number_of(len(chosen), "output folder")
    return click.confirm(f"Delete {what}, {size(sum(one.bytes for one in chosen))}?", default=False, err=True)
