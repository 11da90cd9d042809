"""Keep a host for an unfinished run that waits for it: since the host was restarted, nothing there holds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ..answers.queued import CutShort, OtherRun, Turn
from ..answers.runs import LIST, Part
from ..hosts.fleet import Fleet, Results
from ..inventory.model import Inventory, find_new_host


def keep(turns: Results[Turn], inventory: Inventory, fleet: Fleet) -> Results[Turn]:
    """The turns, with the runs for which hosts are kept, as the other hosts of those runs say.

    They are asked only where nothing else is in the way. Hosts that neither the inventory nor its file has are not.
    """
    free = {name: turn for name, turn in turns.done.items() if turn.free and turn.cut_short}
    names = sorted({name for turn in free.values() for run in turn.cut_short for name in run.hosts})
    hosts = [host for name in names if (host := find_new_host(inventory, name, os.environ)) is not None]
    listed = fleet.each(hosts, lambda _, session: session.request(LIST, {"members": False})).done
    parts = [part for answer in listed.values() for part in answer.runs if part.unfinished]
    kept = {name: replace(turn, kept_for=_waiting(turn.cut_short, parts)) for name, turn in free.items()}
    return replace(turns, done={**turns.done, **kept})


def _waiting(runs: Sequence[CutShort], parts: Sequence[Part]) -> tuple[OtherRun, ...]:
    """Those of the runs that wait for the host, or are about to."""
    return tuple(run for run in runs if any(part.run_id == run.run_id and _misses(part, run.host) for part in parts))


def _misses(part: Part, host: str) -> bool:
    return host in part.suspects or (part.waits is not None and host in part.waits.hosts)
