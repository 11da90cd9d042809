"""`restart`: stop a run, with a snapshot if its script can save one, and start it again as it was started."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..answers.signaled import FINISH
from ..checks.findings import render_line
from ..errors import FindingsError, OrchError, RunFailed, UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, fold_failures
from ..inventory import advice, any_of
from ..inventory.advice import complete_commands
from ..inventory.hostnames import pick
from ..inventory.model import Host, Inventory
from ..output.console import Console, fold, number_of
from ..output.lines import rfc3339
from ..output.mask import hide_credentials
from ..plan import plan as planning
from ..plan.plan import Plan
from ..plan.snapshot import Snapshot
from ..runs import ending, launch, probe, recent, registry, stand_ins, waiting
from ..runs.ending import KillTargets
from ..runs.launch import LaunchContext
from ..runs.out_of_reach import OutOfReach
from ..runs.probe import Probed
from ..runs.queue_place import Place
from ..ssh.config import by_hand
from . import code_watch
from .context import find_run_early, load_inventory_of_run, open_fleet, stderr_console, whoami
from .restart_options import Added, combine
from .restarting import ALL_HOSTS, without_gone
from .up import up
from .up_options import UpOptions

OF_OLD_RUN = frozenset(("port-in-use", "gpu-memory-held-by-others", "gpu-exclusive-mode", "memory-dir-unusable"))
"""Findings of which the old run itself may be the reason."""
STOP_WINDOW = 600.0  # s, on top of grace and lease, for a run to save a snapshot and end
LOOK_EVERY = 0.5  # s
NOTHING_ADDED = Added()


def restart(
    run_name: str, inventory_path: str | None, *, detach: bool, hosts: str | None = None, added: Added = NOTHING_ADDED
) -> int:
    """`hosts`: None: those that the run was started with. `added`: besides the options that it had."""
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(open_fleet(inventory))
        run = find_run_early(fleet, inventory, run_name, console).run  # `up` asks silent hosts again
        options, started = _options_of(run)
        if inventory_path is not None and _is_another_file(inventory_path, started.inventory):
            console.note(f"the new run uses {inventory_path}; run {run.run_id} was started with {started.inventory}")
            started = replace(started, inventory=str(Path(inventory_path).resolve()), inventory_changed=False)
        elif started.inventory_changed:
            console.warning(f"{started.inventory} has changed since run {run.run_id} was started; the new one is used")
        options = combine(options, started.folder, added, Path.cwd())
        known = _check_remembered(options.hosts, inventory, run.run_id, console) if hosts is None else hosts
        options = replace(options, hosts=known)
        again = replace(repeat(options, started.inventory, run.name, detach=detach), continues=run.run_id)
        if run.unfinished:  # it keeps its place
            again = replace(again, queue=False, wait=again.wait or again.queue)
        where = "" if Path(started.folder) == Path.cwd() else f" in {started.folder}"
        starting = f"starting it again{where}: {hide_credentials(again.command(started.inventory))}"
        change = _Change(run, inventory, fleet, stack, console, waits=again.wait, starting=starting, chosen=hosts)
        os.chdir(started.folder)
        try:
            return code_watch.watch(again, change.stop) if again.watch else up(again, before_start=change.stop)
        except (OrchError, KeyboardInterrupt) as error:
            change.describe(again.command_to_restart(run.run_id, started.inventory), error)
            raise


class _Change:
    """From the old run to the new one."""

    def __init__(
        self,
        run: registry.Run,
        inventory: Inventory,
        fleet: Fleet,
        connections: contextlib.ExitStack,
        console: Console,
        *,
        waits: bool,
        starting: str,
        chosen: str | None,
    ) -> None:
        """`waits`: for hosts that others use. `starting`: a line for people. `chosen`: the hosts, by --hosts."""
        self._run, self._inventory, self._fleet, self._connections = run, inventory, fleet, connections
        self._console, self._waits, self._starting, self._chosen = console, waits, starting, chosen
        self._state: Literal["before", "stopping", "between", "after"] = "after" if not run.unfinished else "before"

    def stop(self, plan: Plan, snapshot: Snapshot | None, context: LaunchContext) -> Callable[[], None] | None:
        """Called when the new run is planned, so that a mistake in its command does not end the old one.

        Keeps a place for it before all queued runs if there is an old one.
        """
        run, console = self._run, self._console
        of_run = [host for host in self._inventory.machines if host.name in run.parts and host.name not in run.left]
        left_out = {host for host in run.parts if host not in run.left} - {node.host.name for node in plan.nodes}
        if left_out and self._chosen is None:
            console.warning(
                f"{fold(left_out)} had a part in run {run.run_id}, and is no host of the new one; --hosts chooses "
                "others"
            )
        context.sources.update({host.name: host for host in of_run if not host.witness})
        if not run.unfinished:
            if run.broken or run.rejoining:
                _kill(run, of_run, self._fleet)
            self._connections.close()
            console.step(self._starting)
            return None
        place = self._take_place(plan, snapshot, context)
        self._state = "stopping"
        _stop(run, of_run, self._inventory, self._fleet, console)
        self._state = "between"
        place.keep()
        console.step(self._starting)
        return self._begin

    def _take_place(self, plan: Plan, snapshot: Snapshot | None, context: LaunchContext) -> Place:
        """Raises an error if the new run could not start."""
        run = self._run
        waits_for = waiting.describe(run.waits.hosts, rfc3339(run.waits.until)) if run.waits else ""
        try:
            plan, probed, lost = _check_start(plan, snapshot, self._fleet, context)
            place = Place(plan, probed, self._fleet, context.by)
            place.take(run.run_id, waits=self._waits)
        except OrchError:
            waits = f"; it is waiting for {waits_for}" if waits_for else ""
            self._console.note(f"run {run.run_id} was not stopped: the new run could not start{waits}")
            raise
        if lost and run.waits and lost.host in run.waits.hosts:
            self._console.warning(
                f"run {run.run_id} is waiting for {waits_for}, and would continue from what rank 0 saved there. It is "
                "stopped now"
            )
        return place

    def describe(self, command: str, error: BaseException) -> None:
        """Say after an error what has become of the old run. `command`: what tries again."""
        run_id, is_interrupt = self._run.run_id, isinstance(error, KeyboardInterrupt)
        has_advice = f"ddp-orch restart {run_id}" in str(error)  # without a host that is off, for example
        to_do_so = "" if has_advice else f"; to do so: {command}"
        match self._state:
            case "before" if is_interrupt:
                self._console.note(f"run {run_id} was not stopped")
            case "stopping":
                self._console.note(f"run {run_id} was asked to stop, and no other one was started{to_do_so}")
            case "between":
                self._console.note(f"run {run_id} has been stopped, and no other one was started{to_do_so}")

    def _begin(self) -> None:
        self._state = "after"
        self._connections.close()


def _check_start(
    plan: Plan, snapshot: Snapshot | None, fleet: Fleet, context: LaunchContext
) -> tuple[Plan, Results[Probed], OutOfReach | None]:
    """Raises an error if the new run lacks hosts, or could not start on them.

    Returns the plan with the hosts that would be used, their answers, and what the run would not find, after a warning.
    """
    script = probe.script_of(snapshot)
    nodes = {node.host.name: node for node in plan.nodes}
    asked = fleet.each(
        [node.host for node in plan.nodes],
        lambda host, session: probe.ask(session, probe.question(plan, nodes[host.name], script)),
        "checking the hosts and the script",
    )
    if asked.failed and plan.inventory.any_of is None:
        whole, known = stand_ins.take(
            plan, asked, snapshot, fleet, context.timing, context.step, skip_check=context.skip_check
        )
        plan, asked = launch.drop_unreachable(whole, known, context), known
    findings = [
        finding
        for finding in probe.check_hosts(plan, asked.done)
        if finding.severity == "error" and finding.code not in OF_OLD_RUN
    ]
    if plan.inventory.any_of is not None:
        broken = {host for finding in findings for host in finding.hosts} if not context.skip_check else set()
        usable = [name for name in nodes if name in asked.done and name not in broken]
        if len(usable) >= plan.inventory.any_of:
            findings, plan = [], planning.restrict(plan, usable, any_of=plan.inventory.any_of)
        elif asked.failed:
            silent = "\n  ".join(fold_failures(asked.failed))
            can_be_used = f"{'only ' if usable else ''}{number_of(len(usable), 'host')} can be used"
            raise UnreachableError(f"{can_be_used}, but {plan.inventory.any_of} are needed\n  {silent}")
    if findings and not context.skip_check:
        hosts, inventory = [node.host for node in plan.nodes], plan.inventory.path
        lines = (complete_commands(by_hand(render_line(finding), hosts), inventory) for finding in findings)
        raise FindingsError("\n  ".join(["the new run would fail", *lines]))
    plan, asked = launch.add_source(plan, asked, snapshot, fleet, context, ignore=OF_OLD_RUN)
    return plan, asked, launch.warn_of_lost_files(plan, asked, context)


def _check_remembered(pattern: str | None, inventory: Inventory, run_id: str, console: Console) -> str | None:
    """The `--hosts` of the last start, for the inventory as it is now. Raises UsageError if it has other hosts."""
    if pattern is None or any_of.parse(pattern) is not None:
        return pattern
    names = [host.name for host in inventory.hosts]
    kept = without_gone(pattern, names)
    if kept != pattern:
        console.note(f"the run was started with --hosts '{pattern}'; what is not in the inventory any more is ignored")
    try:
        if kept is not None:
            pick(names, kept)
    except UsageError as error:
        every = advice.command("restart", run_id, "--hosts", ALL_HOSTS, inventory=inventory.path)
        raise UsageError(f"{error}. The run was started with this --hosts; to use all hosts: {every}") from error
    return kept


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
    # each further question to a host that is silent would take as long as this one
    hosts = [host for host in hosts if not isinstance(results.failed.get(host.name), UnreachableError)] or hosts
    is_killed = not results.done or run.state == "waiting"  # nothing runs that could save a snapshot
    if is_killed:
        for line in fold_failures(results.failed):
            console.warning(line)
        _kill(run, hosts, fleet)
    elif not any(answer.can_save for answer in results.done.values()):
        console.note("none of its ranks handles run.snapshot_signal now: it stops without a snapshot")
    else:
        console.note(f"it has up to {STOP_WINDOW / 60:.0f} min for that; Ctrl-C leaves the request to stop")
    deadline = time.monotonic() + run.grace + run.lease + STOP_WINDOW
    while True:
        listing = registry.find(fleet, hosts)
        now = next((other for other in listing.runs if other.run_id == run.run_id), None)
        is_known = now is not None or len(listing.failed) < len(hosts)  # else no host has answered
        if is_known and not (now and any(part.unfinished for part in now.parts.values())):
            return
        if now and now.state == "waiting" and not is_killed:  # its head was lost, and nobody else decides
            is_killed = True
            _kill(run, hosts, fleet)
        if time.monotonic() > deadline:
            kill = advice.command("kill", run.run_id, inventory=inventory.path)
            raise RunFailed(f"run {run.run_id} has not ended within {STOP_WINDOW:g} s. To kill it: {kill}")
        time.sleep(LOOK_EVERY)


def _kill(run: registry.Run, hosts: Sequence[Host], fleet: Fleet) -> None:
    targets = KillTargets(runs=(run.run_id,), run_grace=run.grace, lease=run.lease)
    ending.kill(fleet, hosts, targets, grace=None, by=f"{whoami()}{registry.RESTART}")
