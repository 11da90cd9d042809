"""`kill`: stop runs, clean up what finished runs have left, and report what was verified."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import UnreachableError, UsageError
from ..hosts.fleet import Fleet, Work, fold_failures
from ..inventory.advice import about, command
from ..inventory.hostnames import nearest
from ..inventory.model import Host, Inventory
from ..inventory.run_ids import RUN_ID
from ..output.console import Console, fold, number_of
from ..output.terminal import one_line
from ..runs import choice, ending, queueing, registry, rejoining
from ..runs.ending import KillProof, KillTargets
from ..runs.queued_runs import QueuedRun
from ..runs.registry import Listing, Run
from ..ssh.pipe import ConnectFailure
from .context import load_inventory_of_run, open_fleet, stderr_console, warn_of_doubts, warn_of_unasked_hosts, whoami


@dataclass(frozen=True)
class KillOptions:
    """The options of `kill`."""

    run_name: str | None
    inventory: Inventory
    leftovers: bool
    everything: bool
    forced_pids: Mapping[str, tuple[int, ...]]
    grace: float | None

    @property
    def forced_only(self) -> bool:
        return bool(self.forced_pids) and not (self.leftovers or self.everything or self.run_name is not None)

    @property
    def stops_newest(self) -> bool:
        """Without RUN, the newest run that is not over is stopped."""
        return not (self.leftovers or self.everything or self.forced_only) and self.run_name is None

    def command(self, *words: str) -> str:
        return command("kill", *words, inventory=self.inventory.path)

    def again(self, runs: Sequence[Run]) -> str:
        """The command lines that stop the same. Without RUN, kill would stop a run that was started meanwhile."""
        forced = [
            word for host, pids in self.forced_pids.items() for pid in pids for word in ("--force", f"{host}:{pid}")
        ]
        if self.everything or self.leftovers:
            return self.command("--all" if self.everything else "--leftovers", *forced)
        names = [self.run_name] if self.run_name is not None else [run.run_id for run in runs]
        return " && ".join(self.command(name, *forced) for name in names) or self.command(*forced or ["--leftovers"])


def kill(
    run_name: str | None,
    inventory_path: str | None,
    hosts: str | None,
    *,
    leftovers: bool,
    everything: bool,
    grace: float | None,
    force: Sequence[str],
    as_json: bool,
) -> int:
    if leftovers + everything + (run_name is not None) > 1:
        raise UsageError("RUN, --leftovers and --all cannot be combined")
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    forced = _parse_forced(force, [host.name for host in inventory.machines])
    options = KillOptions(run_name, inventory, leftovers, everything, forced, grace)
    with open_fleet(inventory) as fleet:
        result, listing, runs = _end_runs(options, fleet, console)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    print_result(result, runs, inventory.path, console)
    for run in runs:
        if forgetful := listing.forgetful(run):
            console.warning(
                f"{fold(forgetful)} has no record of run {run.run_id}; another machine of this name was not asked"
            )
    if len(runs) == 1 and runs[0].attempt and not as_json:
        fetch = about(runs[0], listing.runs, inventory.path).command("fetch")
        console.note(f"to download what it has written: {fetch}")
    for run in (run for run in listing.runs if leftovers and run.broken):
        unaware = fold(host for host, part in run.parts.items() if part.unfinished)
        end = options.command(run.run_id)
        console.note(f"run {run.run_id} has ended, and {unaware} does not know that. To end it there at once: {end}")
    still_running = [run.run_id for run in listing.runs if run.unfinished and run not in runs]
    if still_running and run_name is None and not (leftovers or options.forced_only):
        kill_all = options.command("--all")
        verb = "run {} is" if len(still_running) == 1 else "runs {} are"
        console.note(f"{verb.format(', '.join(still_running))} still running. To stop all of your runs: {kill_all}")
    if run_name is None and not options.forced_only:
        for run in (run for run in listing.runs if run not in runs):
            rejoining.note(run, options.command(run.run_id), console)
    if run_name is not None and (others := [run.run_id for run in _same_name(runs, run_name, listing)]):
        console.note(
            f"still running, and also called {run_name}: {', '.join(others)}. To stop it: {options.command(others[-1])}"
        )
    if listing.queued and (options.stops_newest or everything):
        queued = ", ".join(run.run_id for run in listing.queued)
        console.note(f"still queued, and may start now: {queued}. To stop all of your runs: {options.command('--all')}")
    if result.failed:
        console.warning(f"could not verify {fold(result.failed)}. Once reachable, run: {options.again(runs)}")
        return UnreachableError.exit_code
    return 1 if result.remaining else 0


def _end_runs(options: KillOptions, fleet: Fleet, console: Console) -> tuple[KillProof, Listing, Sequence[Run]]:
    """Stop the runs that the options name, and clean up. Returns the result, the listing, and the runs.

    While a host is silent, this stops what the answers of the other hosts are enough for, and the rest afterwards.
    """
    search = registry.Search(fleet, options.inventory.machines, members=True, run_name=options.run_name)
    listing = first = search.wait(lambda _: True)
    if first.late and options.run_name is not None and _must_wait(options, first) and not _queued(options, first):
        console.note(f"no answer yet from {fold(first.late)}; {_describe_waiting(options, first)}")
        listing = first = search.wait()  # the run may be in the queue of a late host
    cancelled: Sequence[str] = ()
    if queued := _queued(options, first):  # before the others: it would be their turn when what runs has ended
        cancelled = _cancel_queued(queued, options, fleet, console)
        search = registry.Search(fleet, options.inventory.machines, members=True)
        listing = first = search.wait(lambda _: True)  # with those that were starting meanwhile
        if options.run_name is not None and queued[0].run_id not in {run.run_id for run in listing.runs}:
            return KillProof(queued[0].run_id, [], listing.missing, cancelled), listing, []
    early_runs: Sequence[Run] = []
    works = []
    if first.late:
        console.note(f"no answer yet from {fold(first.late)}; {_describe_waiting(options, first)}")
    if first.late and _must_wait(options, first):
        if options.run_name is None:
            # a late answer may show which of two contradicting hosts is right
            early_runs = [run for run in _runs_to_stop_now(options, first) if not run.disputed]
            works.append(_begin(options, first.answered, _targets(options, early_runs), fleet))
        listing = search.wait()
        if rest := [run for run in _queued(options, listing) if run not in queued]:
            cancelled = [*cancelled, *_cancel_queued(rest, options, fleet, console)]
    warn_of_doubts(listing, console)
    runs = _runs_to_stop_now(options, listing) if listing.late else _runs_to_stop(options, listing, console)
    for run in runs:
        warn_of_unasked_hosts(run, listing, console)
    # do not connect again to hosts that refused a connection
    pending_hosts = {
        host.name
        for host in options.inventory.machines
        if not isinstance(listing.failed.get(host.name), ConnectFailure)
    }
    if works:
        ids = {run.run_id for run in early_runs}
        late_targets = replace(_targets(options, [run for run in runs if run.run_id not in ids]), stale=False, force={})
        works += [_begin(options, pending_hosts & first.answered, late_targets, fleet)] if late_targets.runs else []
        pending_hosts -= first.answered
    works.append(_begin(options, pending_hosts, _targets(options, runs), fleet))
    result = ending.collect_proof([run.run_id for run in runs], [work.wait() for work in works])
    # a host that failed to list its runs counts as failed, even if it answers now: its runs were not stopped
    failed = {**listing.missing, **result.failed}
    return replace(result, failed=failed, left_queue=cancelled), listing, runs


def _same_name(runs: Sequence[Run], run_name: str, listing: Listing) -> Sequence[Run]:
    """Unfinished runs that have this name too, but are not stopped."""
    return [run for run in listing.runs if run.unfinished and run.name == run_name and run not in runs]


def _queued(options: KillOptions, listing: Listing) -> Sequence[QueuedRun]:
    """The runs that are to leave the queue of `up --queue`."""
    if options.everything:
        return listing.queued
    found = options.run_name and choice.find_queued(listing, options.run_name)
    return [found] if found else []


def _cancel_queued(runs: Sequence[QueuedRun], options: KillOptions, fleet: Fleet, console: Console) -> Sequence[str]:
    """Returns the ids of the runs that have left the queue."""
    left = queueing.cancel(runs, options.inventory.machines, fleet, whoami())
    for run in runs:
        if run in left:
            console.warning(f"{run.run_id} leaves the queue as soon as its `up --queue` of {one_line(run.by)} answers")
        else:
            console.note(f"{run.run_id} has left the queue")
    return [run.run_id for run in runs if run not in left]


def _begin(
    options: KillOptions, names: Collection[str], targets: KillTargets, fleet: Fleet
) -> Work[Host, ending.Answers]:
    hosts = [host for host in options.inventory.machines if host.name in names]
    work = ending.begin(fleet, hosts, targets, grace=options.grace, by=whoami(), doing="stopping")
    work.start()
    return work


def _targets(options: KillOptions, runs: Sequence[Run]) -> KillTargets:
    port = options.inventory.run.rdzv.port
    return KillTargets(
        runs=tuple(run.run_id for run in runs),
        members={run.run_id: {host: part.members for host, part in run.parts.items()} for run in runs},
        stale=options.run_name is None and not options.forced_only,
        warm=options.leftovers or options.everything,
        ports=() if port == "auto" else (port,),
        force=options.forced_pids,
        run_grace=max((run.grace for run in runs), default=0.0),
        lease=max((run.lease for run in runs), default=0.0),
    )


# --- which runs


def _runs_to_stop_now(options: KillOptions, listing: Listing) -> Sequence[Run]:
    """The runs that are to be stopped no matter what late hosts answer.

    The newest run, or a run given by a part of its id, may be one that only a late host knows.
    """
    if options.run_name is not None:
        known = choice.is_found(options.run_name, options.inventory.path, listing)
        run = choice.choose(listing, options.run_name, options.inventory.path) if known else None
        return [run] if run is not None and _is_meant(run, options.run_name, listing.late) else []
    if options.leftovers or options.forced_only:
        return []  # each host cleans up after its own runs; no other host decides about them
    return [run for run in listing.runs if run.broken or (options.everything and not run.is_over)]


def _is_meant(run: Run, run_name: str, late: Collection[str]) -> bool:
    """Whether no late host can have another run that `run_name` means.

    While a run is unfinished, its hosts refuse another run with its name.
    """
    return run.run_id == run_name or (run.name == run_name and run.unfinished and set(late) <= set(run.missing_hosts))


def _must_wait(options: KillOptions, listing: Listing) -> bool:
    """Whether the answers of late hosts can change which runs are to be stopped."""
    if options.run_name is not None:
        return not _runs_to_stop_now(options, listing)
    return options.stops_newest or options.everything


def _runs_to_stop(options: KillOptions, listing: Listing, console: Console) -> Sequence[Run]:
    """The runs that are to be stopped, once every host has answered or failed."""
    if options.run_name is not None:
        return [choice.choose(listing, options.run_name, options.inventory.path)]
    newest_run = [run for run in listing.runs if not run.is_over][-1:] if options.stops_newest else []
    for run in list(newest_run):
        if silent_hosts := set(listing.failed) - set(run.hosts):
            console.warning(f"{_may_have(silent_hosts)}. To stop {run.run_id} anyway: {options.command(run.run_id)}")
            newest_run = []
    return [*_runs_to_stop_now(options, listing), *newest_run]


def _describe_waiting(options: KillOptions, listing: Listing) -> str:
    if not _must_wait(options, listing):
        return "stopping what the other hosts have" if listing.answered else "waiting"
    if options.everything:
        return "stopping the runs of the other hosts first"
    if options.run_name is not None and RUN_ID.fullmatch(options.run_name):
        return "waiting, because no other host has this run"
    if options.run_name is not None:
        return f"waiting, because {options.run_name!r} may be a run there. With a whole id, kill does not wait."
    newest = [run.run_id for run in listing.runs if not run.is_over][-1:]
    at_once = "".join(f". To stop {run_id} at once: {options.command(run_id)}" for run_id in newest)
    return f"waiting, because {_may_have(listing.late)}{at_once}"


def _may_have(hosts: Collection[str]) -> str:
    return f"{fold(hosts)} may have a newer run"


def _parse_forced(pairs: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The pids of `--force HOST:PID`, by host."""
    pids: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        host, colon, pid = pair.rpartition(":")
        if colon and pid in ("0", "1"):
            raise UsageError(f"--force {pair!r}: pid {pid} belongs to the system and is never killed")
        if not colon or not pid.isascii() or not pid.isdigit() or int(pid) < 2:
            raise UsageError(f"--force {pair!r}: expected HOST:PID, such as {hosts[0]}:4711")
        if host not in hosts:
            raise UsageError(f"--force {pair!r}: {host} is not among the hosts; {nearest(host, hosts)}")
        pids[host] = (*pids.get(host, ()), int(pid))
    return pids


def print_result(result: KillProof, runs: Sequence[Run], inventory: str, console: Console) -> None:
    for line in fold_failures(result.failed):
        console.error(line)
    for host, process in result.remaining:
        description = process.cmd if process.pid is None else f"pid {process.pid}"
        if process.owner and process.pid is not None:  # empty if no process has this pid
            description += f" ({process.cmd}) of {process.owner} is still running"
        console.error(f"{host}: {one_line(description + ': ' + process.why)}")
    for host, holder in result.holders:
        pid = f"pid {holder.pid} ({holder.cmd[:80]})" if holder.pid else "a process"
        force = command("kill", "--force", f"{host}:{holder.pid}", inventory=inventory)
        fix = f". To kill it: {force}" if holder.pid else ""
        problem = one_line(f"{holder.what} is in use by {pid} of {holder.owner}, which ddp-orch did not start")
        console.warning(f"{host}: {problem}{fix}")
    if result.memory_freed:
        hosts_freed = fold({host for host, _ in result.memory_freed})
        console.note(f"removed {len(result.memory_freed)} shared memory files of killed ranks on {hosts_freed}")
    run_ids = ", ".join(run.run_id for run in runs)
    count = len(result.killed)
    if count or runs:
        hosts = len({host for host, _ in result.killed})
        where = f" on {number_of(hosts, 'host')}" if hosts else ""
        proof = "" if result.remaining or result.failed else "; verified: none left"
        if count or any(run.broken or not run.is_over for run in runs):
            processes = number_of(count, "process", "processes")
            console.note(f"stopped {run_ids or 'leftovers'}: {processes}{where}{proof}")
        else:
            none_left = "" if result.remaining or result.failed else "; no process of it was left"
            console.note(f"run {run_ids} had already ended ({runs[0].state}){none_left}")
    elif not (result.remaining or result.failed or result.left_queue):
        console.note("nothing to stop")
    if result.autostart_removed:
        console.note(_describe_autostart(result, runs))


def _describe_autostart(result: KillProof, runs: Sequence[Run]) -> str:
    hosts = result.autostart_removed
    rejoined = [run.run_id for run in runs if any(run.parts[host].rejoins for host in hosts if host in run.parts)]
    end = "" if result.failed else ", so it will not start again at a boot"  # hosts without an answer may have theirs
    return f"removed the autostart line of {', '.join(rejoined or [run.run_id for run in runs])} on {fold(hosts)}{end}"
