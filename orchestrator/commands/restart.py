"""`restart`: stop a run, with a snapshot if its script can save one, and start it again as it was started."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..answers.signaled import FINISH
from ..errors import RunFailed, UsageError
from ..hosts.fleet import Fleet, fold_failures
from ..inventory import advice, selection
from ..inventory.model import Host, Inventory
from ..output.console import Console
from ..output.mask import hide_credentials
from ..runs import ending, recent, registry
from ..runs.ending import KillTargets
from . import code_watch, in_job
from .context import find_run_early, load_inventory, load_inventory_of_run, open_fleet, stderr_console, whoami
from .up import UpOptions, up

STOP_WINDOW = 600.0  # s, on top of grace and lease, for a run to save a snapshot and end
LOOK_EVERY = 0.5  # s


def restart(
    run_name: str, inventory_path: str | None, *, detach: bool, hosts: str | None = None, settings: Sequence[str] = ()
) -> int:
    """`hosts`: None: those that the run was started with. `settings`: KEY=VALUE, besides those that it had."""
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory) as fleet:
        run = find_run_early(fleet, inventory, run_name, console).run  # `up` asks silent hosts again
        options, started = _options_of(run)
        if inventory_path is not None and _is_another_file(inventory_path, started.inventory):
            console.note(f"the new run uses {inventory_path}; run {run.run_id} was started with {started.inventory}")
            started = replace(started, inventory=str(Path(inventory_path).resolve()), inventory_changed=False)
        options = replace(options, settings=(*options.settings, *settings))
        options = options if hosts is None else replace(options, hosts=hosts)
        # before anything is stopped
        changed = load_inventory(started.inventory, settings=options.settings)
        changed = selection.select(changed, options.hosts) if options.hosts is not None else changed
        in_job.find_job(changed, detach=detach, requeue=False)
        if run.unfinished:
            of_run = [host for host in inventory.machines if host.name in run.parts]
            _stop(run, of_run, inventory, fleet, console)
    if started.inventory_changed:
        console.warning(f"{started.inventory} has changed since run {run.run_id} was started; the new one is used")
    os.chdir(started.folder)
    again = replace(repeat(options, started.inventory, run.name, detach=detach), continues=run.run_id)
    console.step(f"starting it again: {hide_credentials(again.command(started.inventory))}")
    return code_watch.watch(again) if again.watch else up(again)


def _is_another_file(given: str, known: str) -> bool:
    return Path(given).is_file() and Path(given).resolve() != Path(known).resolve()


def repeat(options: UpOptions, inventory: str, name: str, *, detach: bool) -> UpOptions:
    """What starts the run again. A detached one is not watched."""
    return replace(options, inventory=inventory, name=name, detach=detach, watch=options.watch and not detach)


def _options_of(run: registry.Run) -> tuple[UpOptions, recent.StartCommand]:
    """Raises UsageError if this machine does not know how the run was started, or cannot start it again."""
    started = recent.command_of(run.run_id)
    by_hand = advice.command("up", "--name", run.name, inventory="INVENTORY")
    if started is None:
        raise UsageError(
            f"run {run.run_id} was not started by `up` on this machine, so its command is not known here. Stop it with "
            f"`ddp-orch kill {run.run_id}`, then start it: {by_hand} -- SCRIPT ARGS..."
        )
    for path, what in ((started.folder, "the folder it was started in"), (started.inventory, "its inventory")):
        if not Path(path).exists():
            raise UsageError(f"run {run.run_id}: {what} does not exist any more: {path}")
    try:
        return UpOptions(**started.options), started
    except TypeError as error:  # written by another version
        raise UsageError(f"run {run.run_id} was started by another version; start it by hand: {by_hand}") from error


def _stop(run: registry.Run, hosts: Sequence[Host], inventory: Inventory, fleet: Fleet, console: Console) -> None:
    """Raises RunFailed if the run does not end."""
    console.step(f"stopping run {run.run_id}, with a snapshot if its script saves one")
    question = {"run_id": run.run_id, "by": f"{whoami()}{registry.RESTART}"}
    results = fleet.each(hosts, lambda _, session: session.request(FINISH, question), "asking it to stop")
    if not results.done or run.state == "waiting":  # nothing runs that could save a snapshot
        for line in fold_failures(results.failed):
            console.warning(line)
        targets = KillTargets(runs=(run.run_id,), run_grace=run.grace, lease=run.lease)
        ending.kill(fleet, hosts, targets, grace=None, by=f"{whoami()}{registry.RESTART}")
    elif not any(answer.can_save for answer in results.done.values()):
        console.note("its script does not handle run.snapshot_signal: it stops without a snapshot")
    deadline = time.monotonic() + run.grace + run.lease + STOP_WINDOW
    while True:
        listing = registry.find(fleet, hosts)
        now = next((other for other in listing.runs if other.run_id == run.run_id), None)
        if now is None or not any(part.unfinished for part in now.parts.values()):
            return
        if time.monotonic() > deadline:
            kill = advice.command("kill", run.run_id, inventory=inventory.path)
            raise RunFailed(f"run {run.run_id} has not ended within {STOP_WINDOW:g} s. To kill it: {kill}")
        time.sleep(LOOK_EVERY)
