"""`kill`: end a run, sweep what runs have left, and tell what proves it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import UnreachableError, UsageError
from ..hosts.fleet import Fleet, Work, fold_failures
from ..inventory.advice import command
from ..inventory.hostnames import nearest
from ..inventory.model import Host, Inventory
from ..output.console import Console, fold, number_of
from ..output.terminal import one_line
from ..runs import ending, registry
from ..runs.ending import Killed, KillTargets
from ..runs.registry import Listing, Run
from ..ssh.pipe import ConnectFailure
from .context import load_inventory_of_run, open_fleet, stderr_console, warn_of_doubts, warn_of_unasked_hosts, whoami


@dataclass(frozen=True)
class Request:
    """`kill` as it was asked for."""

    wanted: str | None
    read: Inventory
    leftovers: bool
    everything: bool
    forced: Mapping[str, tuple[int, ...]]
    grace: float | None

    @property
    def forced_only(self) -> bool:
        return bool(self.forced) and not (self.leftovers or self.everything or self.wanted is not None)

    @property
    def newest(self) -> bool:
        """Nobody said which run."""
        return not (self.leftovers or self.everything or self.forced_only) and self.wanted is None

    def command(self, *words: str) -> str:
        return command("kill", *words, inventory=self.read.path)


def kill(
    wanted: str | None,
    given: str | None,
    hosts: str | None,
    *,
    leftovers: bool,
    everything: bool,
    grace: float | None,
    force: Sequence[str],
    as_json: bool,
) -> int:
    if leftovers + everything + (wanted is not None) > 1:
        raise UsageError("RUN, --leftovers and --all cannot be combined")
    console = stderr_console()
    read = load_inventory_of_run(given, hosts, wanted)
    forced = _forced(force, [host.name for host in read.hosts])
    asked = Request(wanted, read, leftovers, everything, forced, grace)
    with open_fleet(read) as fleet:
        result, listing, chosen = _end(asked, fleet, console)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    _tell_kill(result, chosen, read.path, console)
    others = [run.run_id for run in listing.runs if run.unfinished and run not in chosen]
    if others and wanted is None and not (leftovers or asked.forced_only):
        every = asked.command("--all")
        are = "run {} is" if len(others) == 1 else "runs {} are"
        console.note(f"{are.format(', '.join(others))} still running; `{every}` stops all of your runs")
    if result.failed:
        again = asked.command(*([] if wanted is None else [wanted]))
        console.warning(f"could not verify {fold(result.failed)}; once reachable, run: {again}")
        return UnreachableError.exit_code
    return 1 if result.remaining else 0


def _end(asked: Request, fleet: Fleet, console: Console) -> tuple[Killed, Listing, Sequence[Run]]:
    """End what was asked for. While a host is silent: what the others are enough to know of, and the rest afterwards.

    Gives the proof, what the hosts listed, and the runs that were chosen.
    """
    search = registry.Search(fleet, asked.read.hosts, members=True)
    listing = first = search.wait(lambda _: True)
    early: Sequence[Run] = []
    begun = []
    if first.late:
        console.note(f"no answer yet from {fold(first.late)}; {_meanwhile(asked, first)}")
    if first.late and _needs_rest(asked, first):
        if asked.wanted is None:
            # of hosts that contradict each other, a late one may tell which is right
            early = [run for run in _certain(asked, first) if not run.disputed]
            begun.append(_begin(asked, first.answered, _targets(asked, early), fleet))
        listing = search.wait()
    warn_of_doubts(listing, console)
    chosen = _certain(asked, listing) if listing.late else _to_kill(asked, listing, console)
    for run in chosen:
        warn_of_unasked_hosts(run, listing, console)
    # a host that took no connection is not asked for one again
    left = {host.name for host in asked.read.hosts if not isinstance(listing.failed.get(host.name), ConnectFailure)}
    if begun:
        ids = {run.run_id for run in early}
        more = replace(_targets(asked, [run for run in chosen if run.run_id not in ids]), stale=False, force={})
        begun += [_begin(asked, left & first.answered, more, fleet)] if more.runs else []
        left -= first.answered
    begun.append(_begin(asked, left, _targets(asked, chosen), fleet))
    result = ending.proof([run.run_id for run in chosen], [one.wait() for one in begun])
    # what a host did not list was not ended there, even if it has answered by now
    return replace(result, failed={**listing.missing, **result.failed}), listing, chosen


def _begin(asked: Request, names: Collection[str], targets: KillTargets, fleet: Fleet) -> Work[Host, ending.Answers]:
    hosts = [host for host in asked.read.hosts if host.name in names]
    begun = ending.begin(fleet, hosts, targets, grace=asked.grace, by=whoami(), doing="stopping")
    begun.start()
    return begun


def _targets(asked: Request, chosen: Sequence[Run]) -> KillTargets:
    port = asked.read.run.rdzv.port
    return KillTargets(
        runs=tuple(run.run_id for run in chosen),
        members={run.run_id: {host: part.members for host, part in run.parts.items()} for run in chosen},
        stale=asked.wanted is None and not asked.forced_only,
        ports=() if port == "auto" else (port,),
        force=asked.forced,
        run_grace=max((run.grace for run in chosen), default=0.0),
    )


# --- which runs


def _certain(asked: Request, listing: Listing) -> Sequence[Run]:
    """What is to be ended whatever hosts may say that have not answered yet.

    Who wants the newest run, or one by a part of its id, may mean one that such a host has.
    """
    if asked.wanted is not None:
        known = registry.is_found(asked.wanted, asked.read.path, listing)
        run = registry.choose(listing, asked.wanted, asked.read.path) if known else None
        return [run] if run is not None and _is_meant(run, asked.wanted, listing.late) else []
    if asked.leftovers or asked.forced_only:
        return []  # every host clears up after its own runs that have no guard; no host's word ends another's part
    return [run for run in listing.runs if run.broken or (asked.everything and run.unfinished)]


def _is_meant(run: Run, wanted: str, late: Collection[str]) -> bool:
    """Its name is taken on all its hosts while it is unfinished, so that they have no other run of that name."""
    return run.run_id == wanted or (run.name == wanted and run.unfinished and set(late) <= set(run.unheard))


def _needs_rest(asked: Request, listing: Listing) -> bool:
    """Whether hosts that have not answered yet have a say in what is to be ended."""
    if asked.wanted is not None:
        return not _certain(asked, listing)
    return asked.newest or asked.everything


def _to_kill(asked: Request, listing: Listing, console: Console) -> Sequence[Run]:
    """With all answers that can be had."""
    if asked.wanted is not None:
        return [registry.choose(listing, asked.wanted, asked.read.path)]
    newest = [run for run in listing.runs if run.unfinished][-1:] if asked.newest else []
    for run in list(newest):
        if unknown := set(listing.failed) - set(run.hosts):
            console.warning(f"{_may_have(unknown)}; to stop {run.run_id} anyway: {asked.command(run.run_id)}")
            newest = []
    return [*_certain(asked, listing), *newest]


def _meanwhile(asked: Request, listing: Listing) -> str:
    if not _needs_rest(asked, listing):
        return "stopping what the other hosts have"
    if asked.everything:
        return "stopping the runs of the other hosts meanwhile"
    if asked.wanted is not None:
        return f"waiting, because it may have a run that {asked.wanted!r} matches; a whole id does not wait"
    newest = [run.run_id for run in listing.runs if run.unfinished][-1:]
    at_once = "".join(f"; to stop {run_id} at once: {asked.command(run_id)}" for run_id in newest)
    return f"waiting, because {_may_have(listing.late)}{at_once}"


def _may_have(hosts: Collection[str]) -> str:
    return f"{fold(hosts)} may have a newer run"


def _forced(pairs: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """--force HOST:PID, more than one, by host."""
    found: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        host, colon, pid = pair.rpartition(":")
        if colon and pid in ("0", "1"):
            raise UsageError(f"--force {pair!r}: pid {pid} belongs to the system and is never killed")
        if not colon or not pid.isascii() or not pid.isdigit() or int(pid) < 2:
            raise UsageError(f"--force {pair!r}: expected HOST:PID, such as {hosts[0]}:4711")
        if host not in hosts:
            raise UsageError(f"--force {pair!r}: {host} is not among the hosts; {nearest(host, hosts)}")
        found[host] = (*found.get(host, ()), int(pid))
    return found


def _tell_kill(result: Killed, chosen: Sequence[Run], inventory: str, console: Console) -> None:
    for line in fold_failures(result.failed):
        console.error(line)
    for host, process in result.remaining:
        named = f"pid {process.pid}"
        if process.owner:  # else no process has this pid
            named += f" ({process.cmd}) of {process.owner} is still running"
        console.error(f"{host}: {one_line(named + ': ' + process.why)}")
    for host, holder in result.holders:
        pid = f"pid {holder.pid} ({holder.cmd[:80]})" if holder.pid else "a process"
        force = command("kill", "--force", f"{host}:{holder.pid}", inventory=inventory)
        end = f"; to kill it: {force}" if holder.pid else ""
        held = one_line(f"{holder.what} is in use by {pid} of {holder.owner}, which ddp-orch did not start")
        console.warning(f"{host}: {held}{end}")
    if result.memory_freed:
        where = fold({host for host, _ in result.memory_freed})
        console.note(f"removed {len(result.memory_freed)} files that killed ranks left in shared memory on {where}")
    what = ", ".join(run.run_id for run in chosen)
    count = len(result.killed)
    if count or chosen:
        hosts = len({host for host, _ in result.killed})
        where = f" on {number_of(hosts, 'host')}" if hosts else ""
        proof = "" if result.remaining or result.failed else "; verified: none left"
        if count or any(run.unfinished or run.broken for run in chosen):
            processes = number_of(count, "process", "processes")
            console.note(f"stopped {what or 'leftovers'}: {processes}{where}{proof}")
        else:
            console.note(f"run {what} had already ended ({chosen[0].state}); nothing of it was left")
    elif not result.remaining and not result.failed:
        console.note("nothing to stop")
