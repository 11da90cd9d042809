"""The commands, each as one function from what was asked to an exit code. Called by cli.py only."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from . import history, inventory, launch, plan, runs, script, ship, watch
from . import logs as lines
from .console import Console, fold
from .context import (
    chosen_inventory,
    find_run,
    mask_of,
    open_fleet,
    stderr_console,
    warn_of_unheard,
    whoami,
)
from .errors import HeldError, UnreachableError, UsageError
from .fleet import Fleet, folded
from .hostnames import nearest
from .inventory import Inventory
from .inventory_values import env_name, shown
from .logs import Mask
from .plan import Plan

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HELD_AGAIN = 10.0  # s between tries of `up --wait`


@dataclass(frozen=True, kw_only=True)
class Up:
    """`up` as it was asked for."""

    inventory: str
    script: tuple[str, ...]
    detach: bool
    dry_run: bool
    as_json: bool
    name: str | None
    skip_check: bool
    hosts: str | None
    wait: bool
    debug: bool
    env: tuple[str, ...]
    tell_outputs: bool = True  # how to fetch what the run has written
    trainer_args: tuple[str, ...] = ()  # for the bundled trainer, after run.args; then run.script does not count


# --- up


def up(wanted: Up) -> int:
    console = stderr_console()
    read = inventory.load(wanted.inventory)
    if wanted.hosts is not None:
        read = inventory.select(read, wanted.hosts)
    if wanted.trainer_args:
        read = replace(read, run=replace(read.run, script=None, args=(*read.run.args, *wanted.trainer_args)))
    run_id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    made, snapshot = _plan(read, wanted, run_id)
    if wanted.dry_run:
        sys.stdout.write(json.dumps(plan.as_dict(made), indent=2) + "\n" if wanted.as_json else plan.as_text(made))
        return 0
    for warning in snapshot.warnings if snapshot else ():
        console.warning(warning)
    around = launch.Surroundings(
        created_at=lines.rfc3339(time.time()),
        by=whoami(),
        secrets=_secrets(read),
        run_key=secrets.token_hex(32),
        skip_check=wanted.skip_check,
        step=_once(console.step),
        warn=_once(console.warning),
    )
    with open_fleet(read) as fleet:
        resolved = _launch(made, snapshot, fleet, around, wanted.wait, console)
        try:
            history.remember(read.path, run_id, made.name)
            if wanted.detach:
                print(json.dumps({"run_id": run_id, "name": made.name}) if wanted.as_json else run_id, flush=True)
                console.note(f"the run has started; follow it with: ddp-orch logs -f {run_id}")
                return 0
            console.step(f"run {run_id} has started")
            names = [host.name for host in read.hosts]
            mask = Mask(around.secrets.values())
            printer = watch.Printer(names, mask, as_json=wanted.as_json)
            return watch.attend(resolved, fleet, printer, mask, console, tell_outputs=wanted.tell_outputs)
        except (BrokenPipeError, KeyboardInterrupt):
            console.note(f"no longer watching; the run is on its hosts: ddp-orch logs -f {run_id}")
            raise


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """`up --wait` tries again and again, and finds the same."""
    said: set[str] = set()

    def say_once(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    return say_once


def _launch(
    made: Plan, snapshot: ship.Snapshot | None, fleet: Fleet, around: launch.Surroundings, wait: bool, console: Console
) -> Plan:
    told = ""
    while True:
        try:
            return launch.launch(made, snapshot, fleet, around)
        except HeldError as error:
            if not wait:
                raise
            if str(error) != told:
                told = str(error)
                console.note(f"{told}\n  trying again every {HELD_AGAIN:.0f} s; Ctrl-C gives up")
            time.sleep(HELD_AGAIN)


def _plan(read: Inventory, wanted: Up, run_id: str) -> tuple[Plan, ship.Snapshot | None]:
    if wanted.name is not None and not NAME.fullmatch(wanted.name):
        raise UsageError(
            f"--name {wanted.name!r}: letters, digits, `.`, `_` and `-`, at most 63, beginning with a letter or digit"
        )
    command, snapshot = script.find(read, wanted.script)
    code = None
    if snapshot is not None:
        code = plan.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), len(snapshot.files), snapshot.size)
    made = plan.make(
        read,
        run_id=run_id,
        name=wanted.name or run_id,
        command=command,
        code=code,
        env=_env(read, wanted.env),
        debug=wanted.debug,
    )
    return made, snapshot


def _env(read: Inventory, pairs: Sequence[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-e {pair!r}: wants NAME=VALUE")
        if not name:
            raise UsageError(f"-e {pair!r}: no name before the =; wants NAME=VALUE")
        env[_env_name(name, read)] = value
    return env


def _env_name(name: str, read: Inventory) -> str:
    try:
        env_name(name)
    except ValueError as error:
        raise UsageError(f"-e {shown(name)}: {error}") from error
    if name in read.run.secrets:
        raise UsageError(f"-e {name}: it is one of run.secrets, whose values come from your environment only")
    return name


def _secrets(read: Inventory) -> dict[str, str]:
    missing = [name for name in read.run.secrets if name not in os.environ]
    if missing:
        raise UsageError(
            f"{read.path}: run.secrets: {', '.join(missing)} not set in this environment; "
            "export it, or take it out of run.secrets"
        )
    secrets = {name: os.environ[name] for name in read.run.secrets}
    plan.check_size(secrets)
    return secrets


# --- diagnose


def diagnose(wanted: str | None, given: str | None, hosts: str | None, as_json: bool) -> int:
    from . import diagnose_logs, diagnose_run

    console = stderr_console()
    read = chosen_inventory(given, hosts)
    with open_fleet(read) as fleet:
        listing, run = find_run(fleet, read, wanted, console)
        mask = mask_of(read)
        found = diagnose_run.of_run(run.run_id, run.parts, {host.name: host for host in read.hosts}, fleet)
    diagnose_logs.show(found, as_json, mask)
    return UnreachableError.exit_code if listing.failed else 0


# --- kill


def kill(
    wanted: str | None,
    given: str | None,
    hosts: str | None,
    *,
    stale: bool,
    everything: bool,
    grace: float | None,
    force: Sequence[str],
    as_json: bool,
) -> int:
    if stale + everything + (wanted is not None) > 1:
        raise UsageError("RUN, --stale and --all exclude each other")
    console = stderr_console()
    read = chosen_inventory(given, hosts)
    forced = _forced(force, [host.name for host in read.hosts])
    named_only = bool(forced) and not (stale or everything or wanted is not None)
    with open_fleet(read) as fleet:
        listing = runs.find(fleet, read.hosts)
        chosen = [] if named_only else _to_kill(listing, wanted, stale=stale, everything=everything)
        for run in chosen:
            warn_of_unheard(run, listing, console)
        port = read.run.rdzv.port
        victims = runs.Victims(
            runs=tuple(run.run_id for run in chosen),
            stale=wanted is None and not named_only,
            ports=() if port == "auto" else (port,),
            force=forced,
        )
        result = runs.kill(fleet, read.hosts, victims, grace=grace, by=whoami(), doing="ending")
    # what a host did not list was not ended there, even if it has answered by now
    result = replace(result, failed={**listing.failed, **result.failed})
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    _tell_kill(result, chosen, console)
    others = [run.run_id for run in listing.runs if run.unfinished and run not in chosen]
    if others and wanted is None and not (stale or named_only):
        console.note(f"of your runs {', '.join(others)} {'goes' if len(others) == 1 else 'go'} on; kill --all ends all")
    if result.failed:
        console.warning(f"nothing is proven of {fold(result.failed)}; once it can be reached, ddp-orch kill again")
        return UnreachableError.exit_code
    return 1 if result.remaining else 0


def _forced(pairs: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """--force HOST:PID, more than one, by host."""
    found: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        host, colon, pid = pair.rpartition(":")
        if not colon or not pid.isascii() or not pid.isdigit() or int(pid) < 2:
            raise UsageError(f"--force {pair!r}: wants HOST:PID, such as {hosts[0]}:4711")
        if host not in hosts:
            raise UsageError(f"--force {pair!r}: {host} is not among the hosts; {nearest(host, hosts)}")
        found[host] = (*found.get(host, ()), int(pid))
    return found


def _to_kill(listing: runs.Listing, wanted: str | None, *, stale: bool, everything: bool) -> list[runs.Run]:
    if wanted is not None:
        return [runs.choose(listing, wanted)]
    broken = [run for run in listing.runs if run.broken]
    unfinished = [] if stale else [run for run in listing.runs if run.unfinished]
    return broken + (unfinished if everything else unfinished[-1:])


def _tell_kill(result: runs.Killed, chosen: Sequence[runs.Run], console: Console) -> None:
    for line in folded(result.failed):
        console.error(line)
    for one in result.remaining:
        console.error(f"{one['host']}: pid {one['pid']} ({one['cmd']}) of {one['owner']} is still there: {one['why']}")
    for one in result.holders:
        pid = f"pid {one['pid']} ({one['cmd'][:80]})" if one["pid"] else "a process"
        end = f"; to end it: --force {one['host']}:{one['pid']}" if one["pid"] else ""
        console.warning(f"{one['host']}: {one['what']} is held by {pid} of {one['owner']}, which is not ours{end}")
    if result.memory_freed:
        where = fold({one["host"] for one in result.memory_freed})
        console.note(f"removed {len(result.memory_freed)} files that killed ranks had left in shared memory on {where}")
    what = ", ".join(run.run_id for run in chosen)
    count = len(result.killed)
    if count or chosen:
        where = fold({one["host"] for one in result.killed})
        processes = f"{count} {'process' if count == 1 else 'processes'}"
        if count or any(run.unfinished or run.broken for run in chosen):
            console.note(f"ended {what or 'leftovers'}: {processes}{' on ' + where if where else ''}")
        else:
            console.note(f"run {what} was over ({chosen[0].state}); nothing of it was left")
    else:
        console.note("nothing to end")
