"""The timeline of a run in words, from what its head has recorded and the other hosts know. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from ..answers import recorded
from ..answers.runs import Failure
from ..output.console import fold
from ..output.lines import rfc3339, whole_seconds
from .registry import Run

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


def history(run: Run, record: recorded.Record | None) -> list[Entry]:
    """What happened in a run. `record`: of the host that knows most (see `source`), completed (see `complete`).

    What a head that was lost cannot have recorded comes from the verdicts of the other hosts.
    """
    events = record.events if record else ()
    spec = record.spec if record else None
    hosts = [node.host for node in spec.nodes] if spec else run.hosts
    known = entries(events, hosts)
    if not known and run.attempt and (started := _unix_time(run.started_at)) is not None:
        team = fold(node.host for node in spec.nodes if not (node.spare or node.witness)) if spec else ""
        known = [Entry(started, "attempt", f"attempt 1 started{team and ' on '}{team}")]
    is_asked = any(isinstance(event, recorded.StopRequested) for event in events)
    known += _end(run, known, restarts=bool(spec and spec.max_restarts), is_asked=is_asked)
    for wait in _waits(run, record, _names(events, hosts)) if record else ():
        place = next((number for number, entry in enumerate(known) if entry.at > wait.at), len(known))
        known.insert(place, wait)
    return known


def _end(run: Run, known: Sequence[Entry], *, restarts: bool, is_asked: bool) -> list[Entry]:
    """The end of the run, and its first failure if that is not known.

    `restarts`: whether it had run.max_restarts. `is_asked`: whether the request to stop it is known.
    """
    verdict = run.verdict
    if verdict is None:
        return []
    result = []
    newest = max((place for place, entry in enumerate(known) if entry.kind == "attempt"), default=0)
    first = verdict.first_failure
    if first is not None and not any(entry.kind == "failure" for entry in known[newest:]):
        result.append(Entry(first.at, "failure", f"{first.host}: {first}"))
    agree = {part.node: part.ended_at for part in run.parts.values() if part.verdict == verdict and part.ended_at}
    if agree:
        ended_at = agree.get(run.head) or max(agree.values())
        if verdict.stopped_by and not is_asked:
            result.append(Entry(ended_at, "request", f"stopped by {verdict.stopped_by}"))
        why = f"; not restarted: {verdict.no_restart_reason}" if restarts and verdict.no_restart_reason else ""
        result.append(Entry(ended_at, "end", f"the run {ENDED[verdict.state]}{why}"))
    return result


def _waits(run: Run, record: recorded.Record, names: Sequence[str]) -> Iterator[Entry]:
    """What the hosts of the record have waited for. Where it is not the head, the head may be what they wait for."""
    head = run.hosts[run.head] if run.head < len(run.hosts) else None
    over = run.ended_at if run.verdict is not None else None
    for wait in record.waits:
        if wait.until is None or (over is not None and wait.at > over):  # a host that has booted since then
            continue
        until = whole_seconds(rfc3339(wait.until))
        if wait.hosts == (head,) and not (record.run and record.run.host == head):
            yield Entry(wait.at, "failure", f"{head}, the head, does not answer: the run waits for it until {until}")
            continue
        first = run.verdict.first_failure if run.verdict else None
        if first is None and (silent := _silent_hosts(wait, record.events, names, head)):
            yield Entry(wait.at, "failure", _describe_loss(silent))
        yield Entry(wait.at, "change", f"the run waits for {fold(wait.hosts)} until {until}")


def _describe_loss(hosts: Sequence[str]) -> str:
    was, them = ("were", "them") if len(hosts) > 1 else ("was", "it")
    return f"{fold(hosts)} {was} lost: the other hosts received nothing from {them}"


def _silent_hosts(
    wait: recorded.Wait, events: Sequence[recorded.Event], names: Sequence[str], head: str | None
) -> list[str]:
    """Those of the awaited hosts of which no event says why: without a majority, the hosts record no events."""
    running: set[str] = set()
    explained: set[str] = set()
    leader = 0
    for event in events:
        match event:
            case recorded.AttemptOrdered(fields=ordered):
                if ordered.at > wait.at:
                    break
                running = set()
            case recorded.Started(fields=fields) if fields.node < len(names):
                running.add(names[fields.node])
                explained.discard(names[fields.node])
            case recorded.NodeEvent("Lost" | "Restarted", fields) if fields.node < len(names):
                explained.add(names[fields.node])
            case recorded.NodeEvent("Elected", elected):
                explained |= set() if elected.resigned else set(names[leader : leader + 1])
                leader = elected.node
            case (
                recorded.Exited(fields=fields)
                | recorded.Failed(fields=fields)
                | recorded.Drain(fields=fields)
                | recorded.Checked(fields=fields)
            ) if fields.node < len(names):
                running.discard(names[fields.node])
            case _:
                continue
    awaited = wait.hosts if head in wait.hosts else [host for host in wait.hosts if host in running]
    return [host for host in awaited if host not in explained]


def _unix_time(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except ValueError:  # a host may send an invalid date
        return None


def newest_attempt(run: Run, entries: Sequence[Entry]) -> int:
    """`entries`: of `history`, which may be newer than what the hosts have answered about the run."""
    return max(run.attempt, sum(entry.kind == "attempt" for entry in entries))


def source(nodes: Mapping[str, int], head: int, records: Mapping[str, recorded.Record]) -> str | None:
    """The host whose record has the events of a run: its head. If that has not answered, the one that knows most.

    `nodes`: the number of each host, in order of preference.
    """
    hosts = [host for host in nodes if host in records]

    def knowledge(host: str) -> tuple[bool, int, int]:
        return nodes[host] == head, len(records[host].events), len(records[host].waits)

    return max(hosts, key=knowledge, default=None)


def missed_end(run: Run) -> bool:
    """Whether the head has answered, but does not know the end of the run, or for whom the others have waited.

    It was off, and is back.
    """
    parts = [part for host, part in run.parts.items() if host not in run.disputed]
    head = next((part for part in parts if part.node == run.head), None)
    known = {part.verdict.state for part in parts if part.verdict and not part.has_left}
    return head is not None and (head.lacks_guard or bool(known - {head.verdict.state if head.verdict else None}))


def complete(run: Run, record: recorded.Record | None, records: Iterable[recorded.Record]) -> recorded.Record | None:
    """The record, with what the other hosts have waited for since the last event. See `missed_end`.

    `records`: of all hosts that answered.
    """
    if record is None or not missed_end(run):
        return record
    known = max((event.fields.at for event in record.events if not isinstance(event, recorded.OtherEvent)), default=0.0)
    parts = ((other.run, other.waits) for other in records if other.run and other.run.node != run.head)
    others = [waits for part, waits in parts if not part.lacks_guard and part.verdict == run.verdict]
    later = [wait for wait in max(others, key=len, default=()) if wait.at > known]
    return replace(record, waits=(*record.waits, *later))


@dataclass(frozen=True)
class _End:
    """How an attempt ended."""

    at: float
    kind: Literal["failure", "lost", "request", "drain"]
    """`lost`: a host was lost or restarted."""
    node: int = 0
    what: str = ""
    """Of a failure and of a lost host: what the log says of it."""
    failure: Failure | None = None
    """Of a process."""


def drained_attempts(events: Sequence[recorded.Event]) -> set[int]:
    """The attempts that ended because a host was to leave the run, and not because of a failure."""
    return {attempt for attempt, end in _ends(events).items() if end.kind == "drain"}


@dataclass(frozen=True)
class Loss:
    """A host that was lost or restarted, and when the others found that (Unix time, s)."""

    host: str
    at: float | None


def lost_first(events: Sequence[recorded.Event], hosts: Sequence[str]) -> dict[int, Loss]:
    """The attempts whose first failure was that a host was lost or restarted, and that host. `hosts`: see `entries`."""
    names = _names(events, hosts)
    ends = _ends(events).items()
    lost = ((attempt, end) for attempt, end in ends if end.kind == "lost" and end.node < len(names))
    return {attempt: Loss(names[end.node], end.at) for attempt, end in lost}


def first_failures(events: Sequence[recorded.Event], hosts: Sequence[str]) -> dict[int, str]:
    """The attempts that have failed, and the first failure of each with its host. `hosts`: see `entries`."""
    names = [*_names(events, hosts), "all hosts"]
    failed = {attempt: end for attempt, end in _ends(events).items() if end.kind in ("failure", "lost")}
    return {attempt: f"{names[end.node]}: {end.what}" for attempt, end in failed.items() if end.node < len(names)}


def failed_first(events: Sequence[recorded.Event], hosts: Sequence[str]) -> dict[int, tuple[str, Failure]]:
    """The first failure of attempts that ended because a process failed, and its host. `hosts`: see `entries`."""
    names = _names(events, hosts)
    ends = _ends(events).items()
    return {
        attempt: (names[end.node], end.failure)
        for attempt, end in ends
        if end.failure is not None and end.node < len(names)
    }


def _names(events: Sequence[recorded.Event], hosts: Sequence[str]) -> list[str]:
    """Of all nodes, by number, those included that were added."""
    added = (event.fields.host for event in events if isinstance(event, recorded.Added))
    return list(dict.fromkeys([*hosts, *added]))


def _ends(events: Sequence[recorded.Event]) -> dict[int, _End]:
    """By attempt, what ended it first."""
    ends: dict[int, _End] = {}
    running: set[tuple[int, int]] = set()  # (attempt, node) that have not finished
    leaving: set[int] = set()
    attempt = head = begun = 0
    for event in events:
        match event:
            case recorded.AttemptOrdered():
                attempt += 1
            case recorded.Started(fields=started):
                begun = started.attempt
                running.add((started.attempt, started.node))
            case recorded.Exited(fields=exited) if exited.ok:
                running.discard((exited.attempt, exited.node))  # its loss ends nothing any more
            case recorded.Drain(fields=drained):
                leaving.add(drained.node)
                if (attempt, drained.node) in running:
                    ends.setdefault(attempt, _End(drained.at, "drain"))
            case recorded.StopRequested(fields=stopped):
                ends.setdefault(attempt, _End(stopped.at, "request"))
            case recorded.Failed(fields=failed):
                ends.setdefault(attempt, _End(failed.at, "failure", failed.node, str(failed.failure), failed.failure))
            case recorded.Stalled(fields=stalled):
                what = f"no rank printed a line for {stalled.quiet:.0f} s"
                ends.setdefault(attempt, _End(stalled.at, "failure", -1, what))
            case recorded.NodeEvent("Lost" | "Restarted" as how, gone) if (attempt, gone.node) in running:
                lost = _End(gone.at, "lost", gone.node, "host lost" if how == "Lost" else "the host was restarted")
                end = ends.setdefault(attempt, lost)
                if end.kind == "failure" and (gone.heard_at or end.at) < end.at:
                    ends[attempt] = lost  # it was silent before the other one failed
            case recorded.NodeEvent("Elected", elected):
                is_over = not attempt or (begun == attempt and not any(each[0] == attempt for each in running))
                if not is_over and (elected.node == head or elected.resigned):
                    ends.setdefault(attempt, _End(elected.at, "failure", head, "no majority of the hosts answered"))
                elif not is_over and head not in leaving:
                    ends.setdefault(attempt, _End(elected.at, "lost", head, "head lost"))
                head = elected.node
            case recorded.NoMajority(fields=alone):
                ends.setdefault(attempt, _End(alone.at, "failure", head, "no majority of the hosts answered"))
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
    finished: set[int] = set()  # nodes whose part of the attempt has succeeded
    problems: dict[int, set[str]] = {}  # by node, the codes of its newest answer
    cut_off: int | None = None  # the node that failed because the network of the ranks was cut
    ran_on: dict[int, set[int]] = {}  # by attempt, the nodes whose ranks were started
    for event in events:
        if isinstance(event, recorded.Started):
            ran_on.setdefault(event.fields.attempt, set()).add(event.fields.node)
    kind: Kind

    def host(node: int) -> str:
        return hosts[node] if node < len(hosts) else ""

    def attempt_hosts(attempt: int) -> str:
        return fold(filter(None, map(host, ran_on.get(attempt, ()))))

    def no_majority(silent: Iterable[int]) -> str:
        names = fold(filter(None, map(host, silent)))
        return f"no majority of the hosts answered {host(head)}, the head{names and f' (silent: {names})'}"

    for event in events:
        match event:
            case recorded.AttemptOrdered():
                attempt += 1
                ended |= leaving
                finished = set()
                where = attempt_hosts(attempt)
                kind, what = "attempt", f"attempt {attempt} started{where and ' on '}{where}"
            case recorded.Failed(fields=failed):
                cut_off = failed.node if failed.failure.lost else cut_off
                last_line = f" ({failed.failure.said})" if failed.failure.said else ""
                kind, what = "failure", f"{host(failed.node)}: {failed.failure.what}{last_line}"
            case recorded.Exited(fields=exited) if exited.node in lost:
                lost.remove(exited.node)
                kind, what = "change", f"{host(exited.node)} is back"  # it has no rank of an attempt any more
            case recorded.Exited(fields=exited):
                how = "finished" if exited.ok else "failed or were stopped"
                ended |= leaving & {exited.node}
                finished |= {exited.node} if exited.ok else set()
                kind, what = "end", f"{host(exited.node)}: attempt {exited.attempt}: all processes {how}"
            case recorded.NodeEvent("Lost", gone) if gone.node in ended:
                kind, what = "change", f"{host(gone.node)} has left the run"
            case recorded.NodeEvent("Lost", gone) if gone.node in leaving:
                kind, what = "change", f"{host(gone.node)} does not answer any more: it was leaving the run"
            case recorded.NodeEvent("Lost", gone) if gone.node in finished:
                kind, what = "change", f"{host(gone.node)} does not answer any more: its processes had finished"
            case recorded.NodeEvent("Lost", gone):
                lost.add(gone.node)
                silent = "" if gone.heard_at is None else f" for {gone.at - gone.heard_at:.0f} s"
                what = f"{host(gone.node)} was lost: the other hosts received nothing from it{silent}"
                kind = "failure"
            case recorded.NodeEvent("Restarted", restarted):
                lost.add(restarted.node)
                what = f"{host(restarted.node)} was restarted"
                if restarted.node == head:  # nobody has written down what happened meanwhile
                    what = f"{host(head)}, the head, was restarted; the run waited for it until now"
                kind = "failure"
            case recorded.Drain(fields=drained):
                kind, what = "request", f"{host(drained.node)} leaves the run: requested by {drained.by}"
                leaving.add(drained.node)
            case recorded.NodeEvent("Elected", elected):
                is_over = not attempt or finished >= ran_on.get(attempt, {-1})
                kind = "change" if is_over or head in leaving else "failure"
                if elected.node != head and elected.resigned and (problems.get(head) or cut_off == head):
                    kind, what = "change", f"{host(head)} gave up the lead; {host(elected.node)} was elected"
                elif elected.node == head or elected.resigned:
                    again = "it was elected again" if elected.node == head else f"{host(elected.node)} was elected"
                    what = f"{no_majority(elected.silent)}; {again}"
                elif head in leaving:
                    what = f"{host(elected.node)} was elected: the head, {host(head)}, leaves the run"
                else:
                    silent = "" if elected.heard_at is None else f" (silent for {elected.at - elected.heard_at:.0f} s)"
                    what = f"{host(head)}, the head, was lost{silent}; {host(elected.node)} was elected"
                lost |= set() if elected.resigned else {head} - ended - {elected.node}
                head = elected.node
            case recorded.NoMajority(fields=alone):
                kind, what = "failure", no_majority(alone.silent)
            case recorded.Added(fields=added):
                hosts += [added.host] if added.host not in hosts else []
                kind, what = "request", f"{added.host} was added: requested by {added.by}"
            case recorded.Stalled(fields=stalled):
                kind, what = "failure", f"no output from any rank for {stalled.quiet:.0f} s"
            case recorded.StopRequested(fields=stopped):
                kind, what = "request", f"stopped by {stopped.by}"
            case recorded.Agreed(fields=agreed) if agreed.note:
                kind, what = "change", agreed.note
            case recorded.Checked(fields=checked) if (codes := _codes(checked)) != problems.get(checked.node, set()):
                problems[checked.node] = codes
                kind, what = "change", f"{host(checked.node)} {_describe_health(checked)}"
            case recorded.Started(fields=started):
                lost.discard(started.node)
                continue
            case recorded.Agreed() | recorded.Checked() | recorded.OtherEvent():
                continue
        result.append(Entry(event.fields.at, kind, what))
    return result


def _codes(checked: recorded.CheckedFields) -> set[str]:
    return {problem.code for problem in checked.problems}


def _describe_health(checked: recorded.CheckedFields) -> str:
    if not checked.problems:
        return "is healthy again"
    return f"is not healthy: {', '.join(f'{problem.text} [{problem.code}]' for problem in checked.problems)}"
