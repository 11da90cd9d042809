"""`revive`: start the guards of an unfinished run again on hosts that were restarted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import UnreachableError, UsageError
from ..hosts.fleet import fold_failures
from ..inventory import advice
from ..output.console import fold
from ..runs import registry, rejoining, resume_command, revive
from ..runs.revive import Revived
from .context import command_to_resume, find_run, load_inventory_of_run, open_fleet, stderr_console

NO_RECORD = "it has no record of the run"


def revive_run(run_name: str | None, inventory_path: str | None, *, as_json: bool) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory) as fleet:
        lookup = find_run(fleet, inventory, run_name, console)
        run = lookup.run
        about = advice.about(run, lookup.listing.runs, inventory.path)
        guarded = [host for host in run.nodes if run.parts[host].unfinished]
        if guarded and (ended := _end(run)):
            raise UsageError(
                f"run {run.run_id} has ended: {ended}. {fold(guarded)} does not know that yet; to end it there, too: "
                f"{about.command('kill')}"
            )
        if not guarded:
            raise _no_guard(run, lookup.listing, about)
        revived = revive.revive(run.run_id, run.nodes, run.parts, inventory.machines, fleet)
    if as_json:
        print(json.dumps(_as_dict(run, revived, lookup.listing.forgetful(run)), indent=2))
    for line in fold_failures(revived.failed):
        console.error(line)
    forgetful = lookup.listing.forgetful(run)
    for host in forgetful:
        console.error(f"{host}: {_describe_forgetful(run, host, about)}")
    silent = [host for host in run.missing_hosts if host in lookup.listing.failed]
    if revived.hosts:
        console.note(f"{fold(revived.hosts)} takes part in run {run.run_id} again")
        for line in _describe_others(run, revived.hosts, lookup.listing):
            console.warning(line)
    elif not (revived.failed or silent or forgetful):
        console.note(f"run {run.run_id} has a guard on all of its {'other ' if run.drained else ''}hosts")
    if drained := sorted(run.drained - run.sources):
        console.note(revive.describe_drained(run, drained, inventory, about))
    if silent:
        console.warning(f"{fold(silent)} cannot be reached; run `{about.command('revive')}` again when it can")
    return UnreachableError.exit_code if revived.failed or silent or forgetful else 0


def _describe_others(run: registry.Run, hosts: Sequence[str], listing: registry.Listing) -> list[str]:
    """The other runs on these hosts, which share their processors."""
    on_hosts = {
        other.run_id: [host for host in hosts if host in other.parts and other.parts[host].state_here == "running"]
        for other in listing.runs
        if other.run_id != run.run_id
    }
    return [f"{fold(names)} also runs run {run_id}" for run_id, names in on_hosts.items() if names]


def _end(run: registry.Run) -> str:
    """How the run has ended, although a host still waits for the others; "" if it has not.

    A host that has given up the others says `lost`, and they may go on.
    """
    known = [part.verdict.state for part in run.parts.values() if part.verdict and not part.has_left]
    return next((state for state in known if state != "lost"), "" if run.unfinished else run.state)


def _no_guard(run: registry.Run, listing: registry.Listing, about: advice.AboutRun) -> UsageError | UnreachableError:
    chosen = resume_command.choose(command_to_resume(run, about), run.parts, listing.missing_hosts(run))
    resume = f"{chosen.command} ({chosen.note})" if chosen.note else chosen.command
    if any(part.verdict and not part.has_left for part in run.parts.values()):
        return UsageError(
            f"run {run.run_id} has ended: {run.state}. To start a run that resumes from its outputs: {resume}"
        )
    if run.rejoining:
        return UsageError(f"run {run.run_id}: no host has a guard, but {rejoining.describe(run.parts)}")
    if missing_hosts := listing.missing_hosts(run):
        return UnreachableError(
            f"run {run.run_id}: no host that answers has a guard, and {fold(missing_hosts)} does not answer"
        )
    return UsageError(
        f"run {run.run_id} is lost: no host has a guard that knows its key. To start a run that resumes from its "
        f"outputs: {resume}"
    )


def _describe_forgetful(run: registry.Run, host: str, about: advice.AboutRun) -> str:
    return (
        f"{NO_RECORD}, so it cannot come back to it. If state_dir (or $DDP_ORCH_STATE_DIR there) was another folder "
        f"before, set it again, then: {about.command('revive')}. Otherwise, to go on with this machine, start the run "
        f"again: {about.command('restart')}. Or, with torchrun or direct, give it another name in the inventory, then: "
        f"{about.command('add')} NAME"
    )


def _as_dict(run: registry.Run, revived: Revived, forgetful: Sequence[str]) -> dict[str, Any]:
    failed = {host: str(error).removeprefix(f"{host}: ") for host, error in revived.failed.items()}
    failed |= dict.fromkeys(forgetful, NO_RECORD)
    return {"run_id": run.run_id, "revived": list(revived.hosts), "failed": failed}
