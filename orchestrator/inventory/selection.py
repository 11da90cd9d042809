"""Select some hosts of an inventory: `--hosts PATTERN`. No IO."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..errors import UsageError
from ..output.console import fold, number_of
from . import any_of
from .hostnames import pick
from .model import Host, Inventory


def select(inventory: Inventory, pattern: str) -> Inventory:
    """The inventory with only the hosts of `--hosts PATTERN`; see `hostnames.pick` for patterns.

    If the head is not among them, the first of them that is not a spare becomes the head. Spares that are needed for
    run.nnodes become hosts of the team; with `auto`, all of them if there are no other hosts. `any N of PATTERN` leaves
    the choice among them to `up`. Raises UsageError.
    """
    if (parsed := any_of.parse(pattern)) is not None:
        return _select_any_of(inventory, pattern, *parsed)
    names = set(pick([host.name for host in inventory.hosts], pattern))
    hosts = _promote_spares([host for host in inventory.hosts if host.name in names], inventory.run.nnodes)
    working = [host.name for host in hosts if host.in_team]
    if not working:
        raise UsageError(f"--hosts {pattern}: selects no host that can have ranks")
    if inventory.run.nnodes != "auto" and inventory.run.nnodes[0] > len(working):
        selected = number_of(len(working), "host")
        raise UsageError(f"--hosts {pattern}: selects {selected}, but run.nnodes is {inventory.run.nnodes[0]}")
    head = inventory.head if inventory.head in working else working[0]
    return replace(inventory, hosts=hosts, head=head, any_of=None)


def _promote_spares(hosts: Sequence[Host], nnodes: Literal["auto"] | tuple[int, int]) -> tuple[Host, ...]:
    working = sum(host.in_team for host in hosts)
    needed = nnodes[0] if nnodes != "auto" else 0 if working else len(hosts)
    lacking = max(0, needed - working)
    spares = [host.name for host in hosts if host.spare][:lacking]
    return tuple(replace(host, spare=False) if host.name in spares else host for host in hosts)


def _select_any_of(inventory: Inventory, pattern: str, count: int, hosts: str) -> Inventory:
    selected = select(inventory, ",".join(any_of.names(hosts))) if hosts else inventory
    try:
        any_of.check(count, len(selected.hosts))
    except ValueError as error:
        raise UsageError(f"--hosts {pattern}: {error}") from error
    if obstacles := _explain_obstacles(selected, count):
        raise UsageError(f"--hosts {pattern}: cannot be combined with {obstacles}")
    return replace(selected, any_of=count)


def _explain_obstacles(inventory: Inventory, count: int) -> str:
    """The keys of the inventory that `any N` excludes, and how to do without them in one run; "" if there are none."""
    names, options = [], []
    if inventory.run.nnodes != "auto":
        names.append("run.nnodes")
        options.append("--set run.nnodes=auto")
    if inventory.run.witness:
        names.append("run.witness")
        options.append("--set run.witness=null")
        if inventory.run.head_lost == "elect":  # which two hosts cannot do without a witness
            options.append("--set run.head_lost=null")
    if spares := [host.name for host in inventory.hosts if host.spare]:
        names.append(f"spares ({fold(spares)})")
        working = [host.name for host in inventory.hosts if host.in_team]
        if len(working) >= count:
            options.append(f"--hosts {shlex.quote(f'any {count} of {fold(working)}')}")
    if not names:
        return ""
    *others, last = names
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{listed}, which the inventory has; for this run: {' '.join(options)}" if options else listed
