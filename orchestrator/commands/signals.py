"""`signal` and `snapshot`: send a signal to the ranks of a run; have them save a snapshot."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..errors import RunFailed, UnreachableError, UsageError
from ..hosts.fleet import fold_failures
from ..inventory.model import Host, Inventory
from ..output.console import fold, number_of
from ..output.lines import parse_ranks
from ..output.terminal import one_line
from ..runs import registry, signaling
from .context import find_run, load_inventory_of_run, open_fleet, stderr_console

ENDS_RANKS = [signaling.NUMBERS[name] for name in ("KILL", "TERM", "INT", "QUIT", "ABRT")]


def signal_run(run_name: str, signal_name: str, inventory_path: str | None, *, ranks: str | None, as_json: bool) -> int:
    number = parse_signal(signal_name)
    try:
        chosen = None if ranks is None else parse_ranks(ranks)
    except ValueError as error:
        raise UsageError(f"--rank: {error}") from error
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory) as fleet:
        run = find_run(fleet, inventory, run_name, console).run
        if chosen is not None and max(chosen) >= run.ranks:
            raise UsageError(
                f"run {run.run_id} has no rank {max(chosen)}; it has at most {number_of(run.ranks, 'rank')}"
            )
        results = signaling.send(fleet, _hosts_of(run, inventory), run.run_id, number, chosen)
    signaled = sorted(rank for answer in results.done.values() for rank in answer.signaled)
    if as_json:
        failed = {host: str(error) for host, error in results.failed.items()}
        print(json.dumps({"run_id": run.run_id, "signal": number, "ranks": signaled, "failed": failed}, indent=2))
    for line in fold_failures(results.failed):
        console.error(line)
    if results.failed:
        return UnreachableError.exit_code
    missing = sorted((chosen or frozenset()) - set(signaled))
    if missing or not signaled:
        which = f"rank {missing[0]} is not" if missing else "no rank is"
        raise UsageError(f"run {run.run_id}: {which} running")
    console.note(f"sent {signaling.name_of(number)} to {number_of(len(signaled), 'rank')} of run {run.run_id}")
    if number in ENDS_RANKS:
        console.note("a rank that ends by it counts as failed; `ddp-orch kill` stops the run")
    return 0


def snapshot_run(run_name: str | None, inventory_path: str | None, *, limit: float, as_json: bool) -> int:
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory) as fleet:
        run = find_run(fleet, inventory, run_name, console).run
        hosts = _hosts_of(run, inventory)
        console.note(f"asking run {run.run_id} for a snapshot, which prints a line that begins with `saved`")
        line = signaling.take_snapshot(fleet, hosts, run.run_id, limit)
    if line is None:
        raise RunFailed(
            f"run {run.run_id}: no rank has printed a line that begins with `saved` within {limit:g} s. "
            "The snapshot may still be written; --timeout waits longer"
        )
    if as_json:
        print(json.dumps({"run_id": run.run_id, "host": line.host, "rank": line.rank, "line": line.text}, indent=2))
    console.note(f"rank {line.rank} on {line.host}: {one_line(line.text)}")
    return 0


def parse_signal(text: str) -> int:
    """A name, with or without SIG, or a number, as for kill(1)."""
    name = text.upper().removeprefix("SIG")
    if name in signaling.NUMBERS:
        return signaling.NUMBERS[name]
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 64:
        return int(text)
    raise UsageError(f"{text!r} is not a signal; expected a name such as USR1 or TERM, or a number from 1 to 64")


def _hosts_of(run: registry.Run, inventory: Inventory) -> Sequence[Host]:
    """The hosts on which the run is running. Raises UnreachableError or UsageError if there are none."""
    hosts = [host for host in inventory.hosts if host.name in run.parts and run.parts[host.name].unfinished]
    if hosts:
        return hosts
    if run.missing_hosts:
        raise UnreachableError(f"run {run.run_id}: {fold(run.missing_hosts)} does not answer")
    raise UsageError(f"run {run.run_id} has ended: {run.state}")
