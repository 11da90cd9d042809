"""Put together the runs that wait for their turn (`up --queue`) from the tickets on the hosts. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..answers.queued import WaitingRun
from ..inventory.advice import command
from ..inventory.run_ids import SUFFIX
from ..output.console import fold
from ..output.terminal import one_line


@dataclass(frozen=True)
class QueuedRun:
    """A run of `up --queue` that has not started."""

    run_id: str
    name: str
    by: str
    hosts: tuple[str, ...]
    """On which it waits."""
    script: str = ""
    queued_at: float | None = None
    waits_for: tuple[str, ...] = ()
    """Hosts that do not answer, and without which it cannot start."""

    def as_dict(self) -> dict[str, Any]:
        """The same keys as those of a run."""
        unknown = {
            "role": None,
            "node_rank": None,
            "witness": False,
            "state": "queued",
            "exit_code": None,
            "signal": None,
            "pid": None,
            "unfit": None,
        }
        nodes = [{"host": host, **unknown} for host in self.hosts]
        known = {"run_id": self.run_id, "name": self.name, "state": "queued"}
        return {
            **known,
            "attempt": 0,
            "started_at": None,
            "waits": None,
            "suspects": [],
            "rejoining": [],
            "nodes": nodes,
        }


def find(queued: Sequence[QueuedRun], run: str) -> QueuedRun | None:
    """The waiting run with this name or id, or the only one with this start or end of an id."""
    exact = [known for known in queued if run in (known.run_id, known.name)]
    parts = [
        known for known in queued if known.run_id.startswith(run) or (len(run) >= SUFFIX and known.run_id.endswith(run))
    ]
    return exact[-1] if exact else parts[0] if len(parts) == 1 else None


def describe(run: QueuedRun, inventory: str) -> str:
    """Why a command about this run can do nothing yet."""
    named = f"run {run.run_id}" + (f" ({one_line(run.name)})" if run.name != run.run_id else "")
    kill = command("kill", run.run_id, inventory=inventory)
    return (
        f"{named} is queued on {fold(run.hosts)} by {one_line(run.by)} and has not started. "
        f"To take it out of the queue: {kill}"
    )


def still_waiting(runs: Sequence[QueuedRun], by_host: Mapping[str, Sequence[WaitingRun]]) -> tuple[QueuedRun, ...]:
    """The runs of which a host has a ticket, and those of whose hosts none has answered."""
    tickets = {ticket.run_id for waiting in by_host.values() for ticket in waiting}
    return tuple(run for run in runs if run.run_id in tickets or not set(run.hosts) & set(by_host))


def gather(by_host: Mapping[str, Sequence[WaitingRun]], started: frozenset[str]) -> tuple[QueuedRun, ...]:
    """The waiting runs, the next one first.

    `by_host`: the tickets of each host; `started`: ids of runs that have a record, and so wait no more.
    """
    tickets: dict[tuple[int, str], list[tuple[str, WaitingRun]]] = {}
    for host, waiting in by_host.items():
        for ticket in waiting:
            if ticket.run_id not in started:
                tickets.setdefault((ticket.number, ticket.run_id), []).append((host, ticket))
    runs: dict[str, QueuedRun] = {}
    for (_, run_id), listed in sorted(tickets.items()):  # with two numbers while the hosts agree on one
        hosts = (*(runs[run_id].hosts if run_id in runs else ()), *(host for host, _ in listed))
        first = listed[0][1]
        runs[run_id] = QueuedRun(run_id, first.name, first.by, hosts, first.script, first.queued_at, first.waits_for)
    return tuple(runs.values())
