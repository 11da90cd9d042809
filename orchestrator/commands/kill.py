"""`kill`: end a run, sweep what runs have left, and tell what proves it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..errors import UnreachableError, UsageError
from ..hosts.fleet import folded
from ..inventory.advice import command
from ..inventory.hostnames import nearest
from ..output.console import Console, fold
from ..output.terminal import one_line
from ..runs import registry
from .context import inventory_of_run, open_fleet, stderr_console, warn_of_doubts, warn_of_unheard, whoami


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
        raise UsageError("RUN, --leftovers and --all exclude each other")
    console = stderr_console()
    read = inventory_of_run(given, hosts, wanted)
    forced = _forced(force, [host.name for host in read.hosts])
    named_only = bool(forced) and not (leftovers or everything or wanted is not None)
    with open_fleet(read) as fleet:
        # a run that is named is stopped on the other hosts while one of them is silent
        enough = None if wanted is None else partial(registry.is_known, wanted, read.path)
        listing = registry.Search(fleet, read.hosts, members=True).wait(enough)
        warn_of_doubts(listing, console)
        chosen = [] if named_only else _to_kill(listing, wanted, read.path, leftovers=leftovers, everything=everything)
        for run in chosen:
            warn_of_unheard(run, listing, console)
        port = read.run.rdzv.port
        victims = registry.Victims(
            runs=tuple(run.run_id for run in chosen),
            members={run.run_id: {host: part.get("members", ()) for host, part in run.parts.items()} for run in chosen},
            stale=wanted is None and not named_only,
            ports=() if port == "auto" else (port,),
            force=forced,
            run_grace=max((run.grace for run in chosen), default=0.0),
        )
        result = registry.kill(fleet, read.hosts, victims, grace=grace, by=whoami(), doing="ending")
    # what a host did not list was not ended there, even if it has answered by now
    unlisted = {host: error for host, error in listing.failed.items() if host not in listing.late}
    result = replace(result, failed={**unlisted, **result.failed})
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    _tell_kill(result, chosen, read.path, console)
    others = [run.run_id for run in listing.runs if run.unfinished and run not in chosen]
    every = command("kill", "--all", inventory=read.path)
    if others and wanted is None and not (leftovers or named_only):
        console.note(f"of your runs {', '.join(others)} {'goes' if len(others) == 1 else 'go'} on; `{every}` ends all")
    if result.failed:
        again = command("kill", *([] if wanted is None else [wanted]), inventory=read.path)
        console.warning(f"nothing is proven of {fold(result.failed)}; once it can be reached: {again}")
        return UnreachableError.exit_code
    return 1 if result.remaining else 0


def _forced(pairs: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """--force HOST:PID, more than one, by host."""
    found: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        host, colon, pid = pair.rpartition(":")
        if colon and pid in ("0", "1"):
            raise UsageError(f"--force {pair!r}: pid {pid} is the system's own, and is never ended")
        if not colon or not pid.isascii() or not pid.isdigit() or int(pid) < 2:
            raise UsageError(f"--force {pair!r}: wants HOST:PID, such as {hosts[0]}:4711")
        if host not in hosts:
            raise UsageError(f"--force {pair!r}: {host} is not among the hosts; {nearest(host, hosts)}")
        found[host] = (*found.get(host, ()), int(pid))
    return found


def _to_kill(
    listing: registry.Listing, wanted: str | None, inventory: str, *, leftovers: bool, everything: bool
) -> list[registry.Run]:
    if wanted is not None:
        return [registry.choose(listing, wanted, inventory)]
    if leftovers:
        return []  # every host clears up after its own runs that have no guard; no host's word ends another's part
    broken = [run for run in listing.runs if run.broken]
    unfinished = [run for run in listing.runs if run.unfinished]
    return broken + (unfinished if everything else unfinished[-1:])


def _tell_kill(result: registry.Killed, chosen: Sequence[registry.Run], inventory: str, console: Console) -> None:
    for line in folded(result.failed):
        console.error(line)
    for one in result.remaining:
        process = f"pid {one['pid']}"
        if one["owner"]:  # else no process has this pid
            process += f" ({one['cmd']}) of {one['owner']} is still there"
        console.error(f"{one['host']}: {one_line(process + ': ' + one['why'])}")
    for one in result.holders:
        pid = f"pid {one['pid']} ({one['cmd'][:80]})" if one["pid"] else "a process"
        force = command("kill", "--force", f"{one['host']}:{one['pid']}", inventory=inventory)
        end = f"; to end it: {force}" if one["pid"] else ""
        held = one_line(f"{one['what']} is held by {pid} of {one['owner']}, which is not ours")
        console.warning(f"{one['host']}: {held}{end}")
    if result.memory_freed:
        where = fold({one["host"] for one in result.memory_freed})
        console.note(f"removed {len(result.memory_freed)} files that killed ranks had left in shared memory on {where}")
    what = ", ".join(run.run_id for run in chosen)
    count = len(result.killed)
    if count or chosen:
        hosts = len({one["host"] for one in result.killed})
        where = f" on {hosts} {'host' if hosts == 1 else 'hosts'}" if hosts else ""
        proof = "" if result.remaining or result.failed else "; verified: none left"
        if count or any(run.unfinished or run.broken for run in chosen):
            processes = f"{count} {'process' if count == 1 else 'processes'}"
            console.note(f"stopped {what or 'leftovers'}: {processes}{where}{proof}")
        else:
            console.note(f"run {what} was over ({chosen[0].state}); nothing of it was left")
    elif not result.remaining:
        console.note("nothing to end")
