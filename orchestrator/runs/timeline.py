"""The timeline of a run in words, from the events that its head has recorded. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..answers import recorded
from ..output.console import fold

Kind = Literal["attempt", "failure", "end", "change", "request"]
"""An attempt began; something failed or was lost; a host has ended an attempt; the team changed; a person's request."""


ENDED = {
    "succeeded": "succeeded",
    "failed": "failed",
    "stopped": "was stopped, to be resumed",
    "killed": "was stopped",
    "lost": "was lost",
}
"""By state, what happened to the run."""


@dataclass(frozen=True)
class Entry:
    at: float
    """Unix time, seconds, by the clock of the head."""
    kind: Kind
    what: str


def end(record: recorded.Record) -> list[Entry]:
    """How the run ended, if it has and the host of the record was in it till then."""
    part = record.run
    if part is None or part.verdict is None or part.ended_at is None or part.verdict.left:
        return []
    return [Entry(part.ended_at, "end", f"the run {ENDED[part.verdict.state]}")]


def source(nodes: Mapping[str, int], head: int, records: Mapping[str, recorded.Record]) -> str | None:
    """The host whose record has the events of a run: its head. If that has not answered, the one that knows most.

    `nodes`: the number of each host, in order of preference.
    """
    hosts = [host for host in nodes if host in records]
    return max(hosts, key=lambda host: (nodes[host] == head, len(records[host].events)), default=None)


def drained_attempts(events: Sequence[recorded.Event]) -> set[int]:
    """The attempts that ended because a host was to leave the run, and not because of a failure."""
    return {attempt for attempt, event in _ends(events).items() if isinstance(event, recorded.Drain)}


def lost_first(events: Sequence[recorded.Event], hosts: Sequence[str]) -> dict[int, str]:
    """The attempts whose first failure was that a host was lost or restarted, and that host. `hosts`: see `entries`."""
    names = [*hosts, *(event.fields.host for event in events if isinstance(event, recorded.Added))]
    names = list(dict.fromkeys(names))
    return {
        attempt: names[event.fields.node]
        for attempt, event in _ends(events).items()
        if isinstance(event, recorded.NodeEvent) and event.fields.node < len(names)
    }


def _ends(events: Sequence[recorded.Event]) -> dict[int, recorded.Event]:
    """By attempt, the event that ended it: a failure, a loss, a request to stop, or a host that was drained."""
    ends: dict[int, recorded.Event] = {}
    running: set[tuple[int, int]] = set()  # (attempt, node)
    attempt = 0
    for event in events:
        match event:
            case recorded.AttemptOrdered():
                attempt += 1
            case recorded.Started(fields=started):
                running.add((started.attempt, started.node))
            case recorded.Drain(fields=leaving) if (attempt, leaving.node) in running:
                ends.setdefault(attempt, event)
            case recorded.Failed() | recorded.StopRequested() | recorded.Stalled():
                ends.setdefault(attempt, event)
            case recorded.NodeEvent("Lost" | "Restarted", gone) if (attempt, gone.node) in running:
                end = ends.setdefault(attempt, event)
                if isinstance(end, recorded.Failed) and (gone.heard_at or end.fields.at) < end.fields.at:
                    # it was silent before the other one failed
                    ends[attempt] = event
            case _:
                continue
    return ends


def entries(events: Sequence[recorded.Event], hosts: Sequence[str]) -> list[Entry]:
    """`hosts`: the names of the nodes at the start of the run, by number."""
    result: list[Entry] = []
    hosts = list(hosts)
    attempt = head = 0
    leaving: set[int] = set()  # nodes that were drained
    ended: set[int] = set()  # those of them that have no rank any more
    lost: set[int] = set()  # nodes that are not back yet
    ran_on: dict[int, set[int]] = {}  # by attempt, the nodes whose ranks were started
    for event in events:
        if isinstance(event, recorded.Started):
            ran_on.setdefault(event.fields.attempt, set()).add(event.fields.node)
    kind: Kind

    def host(node: int) -> str:
        return hosts[node] if node < len(hosts) else ""

    def attempt_hosts(attempt: int) -> str:
        return fold(filter(None, map(host, ran_on.get(attempt, ()))))

    for event in events:
        match event:
            case recorded.AttemptOrdered():
                attempt += 1
                ended |= leaving
                where = attempt_hosts(attempt)
                kind, what = "attempt", f"attempt {attempt} started{where and ' on '}{where}"
            case recorded.Failed(fields=failed):
                last_line = f" ({failed.failure.said})" if failed.failure.said else ""
                kind, what = "failure", f"{host(failed.node)}: {failed.failure.what}{last_line}"
            case recorded.Exited(fields=exited) if exited.node in lost:
                lost.remove(exited.node)
                kind, what = "change", f"{host(exited.node)} is back"  # it has no rank of an attempt any more
            case recorded.Exited(fields=exited):
                how = "finished" if exited.ok else "failed or were stopped"
                ended |= leaving & {exited.node}
                kind, what = "end", f"{host(exited.node)}: attempt {exited.attempt}: all processes {how}"
            case recorded.NodeEvent("Lost", gone) if gone.node in ended:
                kind, what = "change", f"{host(gone.node)} has left the run"
            case recorded.NodeEvent("Lost", gone) if gone.node in leaving:
                kind, what = "change", f"{host(gone.node)} does not answer any more: it was leaving the run"
            case recorded.NodeEvent("Lost", gone):
                lost.add(gone.node)
                kind, what = "failure", f"{host(gone.node)} was lost: the other hosts received nothing from it"
            case recorded.NodeEvent("Restarted", restarted):
                lost.add(restarted.node)
                kind, what = "failure", f"{host(restarted.node)} was restarted"
            case recorded.Drain(fields=drained):
                kind, what = "request", f"{host(drained.node)} leaves the run: requested by {drained.by}"
                leaving.add(drained.node)
            case recorded.NodeEvent("Elected", elected) if elected.node == head:
                kind, what = "change", f"too few hosts answered for a while; {host(head)} was elected as the head again"
            case recorded.NodeEvent("Elected", elected):
                why = "leaves the run" if head in ended else "was lost, or had no majority"
                kind, what = "change", f"{host(elected.node)} was elected: the head, {host(head)}, {why}"
                lost |= {head} - ended - {elected.node}
                head = elected.node
            case recorded.Added(fields=added):
                hosts += [added.host] if added.host not in hosts else []
                kind, what = "request", f"{added.host} was added: requested by {added.by}"
            case recorded.Stalled(fields=stalled):
                kind, what = "failure", f"no output from any rank for {stalled.quiet:.0f} s"
            case recorded.StopRequested(fields=stopped):
                kind, what = "request", f"stopped by {stopped.by}"
            case recorded.Agreed(fields=agreed) if agreed.note:
                kind, what = "change", agreed.note
            case recorded.Started(fields=started):
                lost.discard(started.node)
                continue
            case recorded.Agreed() | recorded.OtherEvent():
                continue
        result.append(Entry(event.fields.at, kind, what))
    return result
