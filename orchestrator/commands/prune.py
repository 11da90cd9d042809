"""`prune`: delete from the hosts what `run.keep` does not keep; output folders only after a question."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..answers.files import OUTPUT_FOLDERS, PRUNE, REMOVE_OUTPUTS, Pruned
from ..answers.finished import FINISHED, Finished
from ..errors import UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, fold_failures
from ..inventory import advice
from ..inventory.model import Inventory
from ..inventory.run_ids import RUN_ID, SUFFIX
from ..output.console import fold, fold_messages, number_of, size
from ..runs import choice, pruning, registry
from ..runs.pruning import Choice, describe_unfetched, list_runs
from .context import load_inventory, open_fleet, stderr_console


def prune(inventory_path: str | None, hosts: str | None, run_names: Collection[str] = (), *, force: bool) -> int:
    """Delete the records and logs of finished runs: of those in `run_names`, else as `run.keep` says."""
    console = stderr_console()
    if inventory_path and RUN_ID.fullmatch(inventory_path):
        raise UsageError(f"{inventory_path} is a run; to delete its record: ddp-orch prune --run {inventory_path}")
    inventory = load_inventory(inventory_path, hosts)
    with open_fleet(inventory) as fleet:
        fleet.prepare(inventory.machines)
        run_ids = _finished(run_names, fleet, inventory) if run_names else None
        asked = _ask_hosts(fleet, inventory, run_ids)
        choice = _choose(asked.done, run_ids, inventory, force=force)
        arguments = {"keep": None if run_names else inventory.run.keep.on_hosts()}
        results = fleet.each(
            [
                host
                for host in inventory.machines
                if host.name in asked.done and (not run_names or choice.on(host.name))
            ],
            lambda host, session: session.request(PRUNE, {**arguments, "runs": choice.on(host.name)}),
            "pruning",
        )
    for line in fold_messages({host: _summarize(answer) for host, answer in results.done.items()}):
        console.note(line)
    unfetched = {host: describe_unfetched(runs, inventory.path) for host, runs in choice.unfetched.items()}
    for line in fold_messages(unfetched):
        console.warning(line)
    if choice.waiting:
        absent = {name for names in choice.waiting.values() for name in names}
        console.note(
            f"not deleted until {fold(absent)} can be asked, because a run is deleted from all of its hosts or from "
            f"none: {list_runs(list(choice.waiting))}"
        )
    failed = {**asked.failed, **results.failed}
    for line in fold_failures(failed):
        console.error(line)
    return UnreachableError.exit_code if failed else 0


def _finished(run_names: Collection[str], fleet: Fleet, inventory: Inventory) -> list[str]:
    """The ids of these runs. Raises UsageError for one that does not exist, or has not ended."""
    listing = registry.find(fleet, inventory.machines)
    runs = [choice.choose(listing, name, inventory.path) for name in run_names]
    for run in runs:
        if not run.is_over or run.broken:
            kill = advice.command("kill", run.run_id, inventory=inventory.path)
            raise UsageError(f"run {run.run_id} has not ended, so nothing was deleted. To stop it: {kill}")
    return [run.run_id for run in runs]


def _ask_hosts(fleet: Fleet, inventory: Inventory, run_ids: Sequence[str] | None) -> Results[tuple[Finished, bool]]:
    """What each host would delete, and whether it could not read all of its records. `run_ids`: only of these."""
    arguments = {"keep": inventory.run.keep.on_hosts(), "only": run_ids}
    return fleet.each(
        inventory.machines,
        lambda _, session: (session.request(FINISHED, arguments), bool(session.hello.passed_over)),
        "looking for old runs",
    )


def _choose(
    asked: Mapping[str, tuple[Finished, bool]], run_ids: Sequence[str] | None, inventory: Inventory, *, force: bool
) -> Choice:
    """The runs to delete: those of `run_ids`, or else those that run.keep does not keep.

    Unless `force`, raises UnreachableError if some host of `run_ids` did not answer, and UsageError if such a run has
    files that were not fetched.
    """
    answers = {host: answer for host, (answer, _) in asked.items()}
    choice = pruning.choose(answers, [host for host, (_, is_blind) in asked.items() if is_blind], force=force)
    if run_ids is None:
        return choice
    if force:
        hosts = {run_id: [host for host, answer in answers.items() if answer.has_due(run_id)] for run_id in run_ids}
        return Choice(hosts)
    for run_id, missing in choice.waiting.items():
        anyway = advice.command("prune", "--run", run_id, "--force", inventory=inventory.path)
        raise UnreachableError(
            f"{fold(missing)} could not be asked about run {run_id}, so nothing was deleted. "
            f"To delete it from its other hosts: {anyway}"
        )
    for host, runs in choice.unfetched.items():
        run_id = max(runs)
        fetch = advice.command("fetch", run_id, inventory=inventory.path)
        anyway = advice.command("prune", "--run", run_id, "--force", inventory=inventory.path)
        raise UsageError(
            f"run {run_id} wrote files outside $DDP_ORCH_OUTPUT_DIR on {host} that were not fetched, so nothing was "
            f"deleted. To fetch them: {fetch}\n  To delete them with the run: {anyway}"
        )
    return choice


def _summarize(answer: Pruned) -> str:
    runs, outputs = len(answer.runs), len(answer.outputs)
    unused, freed, left = answer.unused, answer.freed, answer.left
    kept_text = f"kept {number_of(left, 'finished run')}"
    if not runs and not outputs and not unused:
        return f"nothing to remove; {kept_text}"
    removed = [number_of(runs, "run")] if runs else []
    removed += [number_of(outputs, "output folder")] if outputs else []
    removed += [number_of(unused, "unused code folder")] if unused else []
    return f"removed {', '.join(removed)}, {freed / 1e6:.1f} MB freed; {kept_text}"


# --- output folders


@dataclass(frozen=True)
class Folder:
    """The output folder of a run on one host."""

    name: str
    host: str
    bytes: int
    age: float
    """Seconds since the last write to it."""
    in_use: bool


def prune_outputs(inventory_path: str | None, hosts: str | None, run_names: Collection[str], *, yes: bool) -> int:
    """Delete output folders: of the runs in `run_names`, else of all runs that were started without a name."""
    console = stderr_console()
    inventory = load_inventory(inventory_path, hosts)
    with open_fleet(inventory) as fleet:
        fleet.prepare(inventory.machines)
        listings = fleet.each(
            inventory.machines, lambda _, session: session.request(OUTPUT_FOLDERS, {}).folders, "looking"
        )
        folders = [
            Folder(folder.name, host, folder.bytes, folder.age, folder.in_use)
            for host, host_folders in sorted(listings.done.items())
            for folder in host_folders
        ]
        for line in fold_failures(listings.failed):
            console.error(line)
        if shared := inventory.run.output:
            console.note(f"outputs in run.output ({shared}) are not deleted")
        names_of_folders = {folder.name for folder in folders}
        if set(run_names) - names_of_folders:
            runs = registry.find(fleet, inventory.machines).runs
            run_names = {find_folder(folder, names_of_folders, runs) for folder in run_names}
        to_delete, notes = choose(folders, run_names, inventory.path)
        for line in notes:
            console.note(line)
        if not to_delete:
            console.note("no outputs to delete")
            return UnreachableError.exit_code if listings.failed else 0
        sys.stdout.write(table(to_delete))
        sys.stdout.flush()
        if not (yes or _ask(to_delete)):
            console.note("nothing was deleted" + ("" if sys.stdin.isatty() else "; without a terminal, give --yes"))
            return UsageError.exit_code
        names: dict[str, list[str]] = {}
        for folder in to_delete:
            names.setdefault(folder.host, []).append(folder.name)
        removed = fleet.each(
            [host for host in inventory.machines if host.name in names],
            lambda host, session: session.request(REMOVE_OUTPUTS, {"names": names[host.name]}),
            "deleting",
        )
    for line in fold_failures(removed.failed):
        console.error(line)
    warnings = {
        host: f"not deleted: {', '.join(undeleted)}; a run uses it, or it has files of another user"
        for host, answer in removed.done.items()
        if (undeleted := sorted(set(names[host]) - set(answer.removed)))
    }
    for line in fold_messages(warnings):
        console.warning(line)
    freed = sum(max(0, answer.freed) for answer in removed.done.values())
    count = sum(len(set(answer.removed) & set(names[host])) for host, answer in removed.done.items())
    console.note(f"deleted {number_of(count, 'output folder')}, {size(freed)} freed")
    return UnreachableError.exit_code if listings.failed or removed.failed else 0


def find_folder(run_name: str, folders: Collection[str], runs: Iterable[registry.Run]) -> str:
    """The output folder of the run with this name, id, or start or end of an id. Raises UsageError.

    The record of the run may have been pruned.
    """
    if run_name in folders:
        return run_name
    runs_by_id = {run.run_id: run for run in runs}
    ids = {*runs_by_id, *filter(RUN_ID.fullmatch, folders)}
    matches = [run.run_id for run in runs_by_id.values() if run_name in (run.name, run.run_id)][-1:] or sorted(
        run_id
        for run_id in ids
        if run_name and (run_id.startswith(run_name) or (len(run_name) >= SUFFIX and run_id.endswith(run_name)))
    )
    if len(matches) > 1:
        raise UsageError(f"--run {run_name!r} matches several runs: {', '.join(matches)}. Give more of the id.")
    run = runs_by_id.get(matches[0]) if matches else None
    shared = next((path for part in run.parts.values() if (path := part.shared_output)), None) if run else None
    if shared:
        raise UsageError(f"the outputs of run {matches[0]} are in {shared} (run.output), which prune does not delete")
    folder = run.name if run else matches[0] if matches else run_name
    if folder not in folders:
        raise UsageError(f"--run {run_name}: no host has outputs of it")
    return folder


def choose(folders: Iterable[Folder], run_names: Collection[str], inventory: str) -> tuple[list[Folder], list[str]]:
    """The folders to delete, and notes about the others. Outputs of running runs are never deleted."""
    selected = [
        folder for folder in folders if folder.name in run_names or (not run_names and RUN_ID.fullmatch(folder.name))
    ]
    running = sorted({folder.name for folder in folders if folder.in_use})
    to_delete = [folder for folder in selected if folder.name not in running]
    notes = [f"in use, not deleted: {', '.join(running)}"] if len(to_delete) < len(selected) else []
    rest = {folder.name: 0 for folder in folders if folder not in selected and folder.name not in running}
    if rest and not run_names:
        total = sum(folder.bytes for folder in folders if folder.name in rest)
        notes.append(
            f"not deleted, because they have a name: {', '.join(sorted(rest))} ({size(total)}); "
            f"to delete one: {advice.command('prune', '--outputs', '--run', min(rest), inventory=inventory)}"
        )
    return sorted(to_delete, key=lambda folder: (-folder.age, folder.host)), notes


def table(folders: Iterable[Folder]) -> str:
    rows = [("RUN", "HOST", "SIZE", "LAST WRITTEN")]
    rows += [(folder.name, folder.host, size(folder.bytes), _age(folder.age)) for folder in folders]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def _ask(folders: Collection[Folder]) -> bool:
    import click

    if not sys.stdin.isatty():
        return False
    what = number_of(len(folders), "output folder")
    return click.confirm(f"Delete {what}, {size(sum(folder.bytes for folder in folders))}?", default=False, err=True)
