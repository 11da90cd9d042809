"""Check what hosts claim about a run: each may speak about its own node, and the head about the whole run. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..answers.fields import UNFINISHED
from ..answers.runs import Part, Verdict
from ..plan.plan import Plan, processes


@dataclass(frozen=True)
class Claims:
    """The hosts that take part in a run, if their claims agree."""

    parts: Mapping[str, Part]
    disputed: frozenset[str]
    """Hosts of `parts` that claim the same node or have different lists of hosts; none of them is trusted."""
    strangers: frozenset[str]
    """Hosts that do not belong to the run, or claim the node of another host."""


def check_claims(parts: Mapping[str, Part], unreachable: Collection[str] = ()) -> Claims:
    """Check the answers of hosts. `parts`: by the host's name in the inventory of this command.

    All hosts of a run got the same list of its hosts, so a host with another list than most is a stranger. Only the
    head knows of all hosts that were added later: the lists of the others are beginnings of its list. Without its
    answer, the longest list counts.
    """
    sound = {host: part for host, part in parts.items() if _is_sound(part)}
    head = head_of(sound.values())
    heads = [part for part in sound.values() if part.node == head] or list(sound.values())
    of_heads = sorted(map(_plan, heads), key=lambda plan: -len(plan[0]))
    plans = {host: _extended(_plan(part), of_heads) for host, part in sound.items()}
    counts = Counter(plans.values())
    usual = [plan for plan, count in counts.items() if count == max(counts.values())]
    members = {host: parts[host] for host, plan in plans.items() if plan in usual}
    if len(usual) > 1:
        return Claims(members, frozenset(members), frozenset(parts) - set(members))
    claimants: dict[int, list[str]] = {}
    for host, part in members.items():
        claimants.setdefault(part.node, []).append(host)
    disputed: set[str] = set()
    strangers = set(parts) - set(members)
    for hosts in claimants.values():
        first = members[hosts[0]]
        by_name = first.hosts.index(hosts[0]) if hosts[0] in first.hosts else None
        if first.host in hosts:
            strangers |= set(hosts) - {first.host}
        elif len(hosts) > 1:
            disputed |= set(hosts)
        elif first.host in unreachable or (by_name is not None and by_name not in claimants):
            strangers |= set(hosts)  # the host has the name of another node, which no host claims
    accepted = {host: part for host, part in members.items() if host not in strangers}
    return Claims(accepted, frozenset(disputed), frozenset(strangers))


def _is_sound(part: Part) -> bool:
    node, hosts = part.node, part.hosts
    return 0 <= node < len(hosts) == len(part.nprocs) and hosts[node] == part.host


def _plan(part: Part) -> tuple[Any, ...]:
    return part.hosts, part.nprocs, part.team


def _extended(plan: tuple[Any, ...], of_heads: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The longest list of a head that begins as this one does."""
    hosts, nprocs, team = plan
    count = len(hosts)
    longer = (one for one in of_heads if (one[0][:count], one[1][:count], one[2]) == (hosts, nprocs, team))
    return next(longer, plan)


def head_of(parts: Iterable[Part]) -> int:
    """The node that leads the run: the one that most hosts follow, or of two such nodes the one elected later.

    A host that was drained or rebooted follows nobody any more; it counts only if there is no other.
    """
    known = list(parts)
    following = [part for part in known if not (part.has_left or part.lacks_guard)]
    followed = Counter((part.epoch, part.head) for part in following or known)
    most = max(followed.values(), default=0)
    _, head = max((choice for choice, count in followed.items() if count == most), default=(0, 0))
    return head


def without_old_places(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts, but without ranks where a host knows only an attempt before that of the head.

    It was left out of the newest attempt. If its disk is full, it could not record this.
    """
    head = head_of(parts.values())
    newest = max((part.attempt for part in parts.values() if part.node == head), default=0)

    def is_old(part: Part) -> bool:
        return part.unfinished and part.node != head and part.attempt < newest and part.node_rank is not None

    return {
        host: replace(part, node_rank=None, first_rank=None, state="waiting" if part.state == "running" else part.state)
        if is_old(part)
        else part
        for host, part in parts.items()
    }


def drained_hosts(parts: Iterable[Part]) -> frozenset[str]:
    """The names of the hosts that were drained, as those say that still have a guard, or had one until the end."""
    return frozenset(name for part in parts if not part.lacks_guard for name in part.drained)


def with_drained(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts, but as drained where the others say so of a host without a guard: it was off, and does not know."""
    drained = drained_hosts(parts.values())
    verdict = Verdict("stopped", left=True)
    return {
        host: replace(part, state="stopped", verdict=verdict) if part.lacks_guard and part.host in drained else part
        for host, part in parts.items()
    }


def verdict_of(
    parts: Mapping[str, Part], nodes: Mapping[str, int], without_record: Collection[str] = ()
) -> Verdict | None:
    """How a run ended, as its head says. Without the head, the first other host counts, but cannot prove a success.

    `nodes`: the node number of each host, from the plan or from checked claims; other hosts are ignored.
    `without_record`: hosts that answer and have deleted the record of the run. A head that did so knew that it had
    ended, so the word of another host is enough. For a run that was stopped while it waited, see `_stopped_part`.
    """
    verdicts = {
        nodes[host]: part.verdict
        for host, part in parts.items()
        if host in nodes and part.verdict and not part.has_left
    }
    if not verdicts:
        return None
    known = {nodes[host]: part for host, part in parts.items() if host in nodes}
    stopped = _stopped_part(known)
    if stopped is not None:
        return stopped.verdict
    head = head_of(known.values())
    node = head if head in verdicts else min(verdicts)
    head_is_done = any(nodes.get(host) == head for host in without_record)
    return verdicts[node] if node == head or head_is_done or verdicts[node].state != "succeeded" else None


def _stopped_part(parts: Mapping[int, Part]) -> Part | None:
    """The part that knows that the run was stopped, if the others were stopped or lost. `parts`: by node number.

    A host that was off when the run was stopped, perhaps the head, finds nobody after it boots: there the run was lost.
    In a newer attempt, it would have gone on instead. (A spare does not count the attempts of the others.) A host that
    was stopped after the run was lost has only been cleaned up: it was cut off, and did not know.
    """
    stayed = {node: part for node, part in parts.items() if not part.has_left}
    if any(part.state not in ("killed", "lost") for part in stayed.values()):
        return None
    head = head_of(parts.values())
    newest = max((part.attempt for part in stayed.values()), default=0)
    lost_at = min((part.ended_at for part in stayed.values() if _was_lost(part) and part.ended_at), default=math.inf)
    stopped = [
        node
        for node, part in stayed.items()
        if part.verdict
        and part.verdict.state == "killed"
        and (part.attempt == newest or part.node_rank is None)
        and (part.ended_at or 0.0) <= lost_at
    ]
    return stayed[min(stopped, key=lambda node: (node != head, node))] if stopped else None


def _was_lost(part: Part) -> bool:
    return part.verdict is not None and part.verdict.state == "lost"


ABANDONED = "no host has a guard of the run any more. All were rebooted, or all processes of the user were killed there"


def is_abandoned(parts: Mapping[str, Part], nodes: Mapping[str, int]) -> bool:
    """Whether every host has answered, and none has a guard of the unfinished run any more, so nobody can tell why."""
    stayed = [host for host in nodes if host not in parts or not parts[host].has_left]
    return bool(stayed) and all(host in parts and parts[host].lacks_guard for host in stayed)


def state_of_run(parts: Collection[Part]) -> tuple[Part, str, int]:
    """Of the hosts' parts of a run: the one that speaks for it, and its state and newest attempt.

    Only the head knows the state of the whole run. Without its answer, an unfinished part makes the run unfinished.
    """
    stopped = _stopped_part({part.node: part for part in parts})
    if stopped is not None:
        return stopped, stopped.state, max(part.attempt for part in parts)
    head = head_of(parts)
    first = min(parts, key=lambda part: (part.node != head, part.has_left, part.node))
    state, attempt = first.state, first.attempt
    if first.node != head:
        attempt = max(part.attempt for part in parts)
        state = state if state in UNFINISHED else unfinished_state(parts) or state
    elif first.lacks_guard and any(part.unfinished for part in parts):
        state = "waiting"  # the head was restarted, and the other hosts wait for it
    return first, state, attempt


def unfinished_state(parts: Iterable[Part]) -> str | None:
    """The state of a part that is not over; None: all are."""
    states = {part.state for part in parts}
    return next((unfinished for unfinished in UNFINISHED if unfinished in states), None)


def state_of_host(part: Part) -> str:
    """The state to show for a host: that of the run, but `stopped` if another host made the run fail."""
    first = part.verdict.first_failure if part.verdict else None
    culprit = first.node if first else None
    stopped = part.state in ("failed", "lost") and culprit is not None and culprit != part.node
    return "stopped" if stopped else part.state_here


class Ranks:
    """Which host may send the lines of a rank. `places`: attempt -> host -> its ranks, if known.

    A restart may move ranks to other hosts. In an attempt without known places, a rank belongs to the first host that
    sends lines of it.
    """

    def __init__(self, places: Mapping[int, Mapping[str, range]] | None = None) -> None:
        self._places = places or {}
        self._senders: dict[tuple[int, int], str] = {}

    def belongs(self, attempt: int, rank: int, host: str) -> bool:
        places = self._places.get(attempt, {})
        if host in places:
            return rank in places[host]
        if any(rank in ranks for ranks in places.values()):
            return False
        return self._senders.setdefault((attempt, rank), host) == host


def ranks_of_plan(plan: Plan) -> Ranks:
    """The ranks of the first attempt of a resolved plan. Later attempts are decided by the hosts."""
    nprocs = [processes(plan, node) for node in plan.nodes]
    return Ranks({1: dict(zip((node.host.name for node in plan.nodes), _places(nprocs, len(plan.team)), strict=True))})


def ranks_of(parts: Mapping[str, Part], nodes: Mapping[str, int]) -> Ranks:
    """The ranks of the first attempt, as planned, and those of the newest attempt, as claimed by the hosts."""
    first = next((parts[host] for host in nodes if host in parts), None)
    if first is None:
        return Ranks()
    places = _places(first.nprocs, first.team)
    planned = {host: places[node] for host, node in nodes.items() if node < len(places)}
    newest = _newest_attempt(parts, nodes)
    return Ranks({newest: _claimed(parts, nodes, newest), 1: planned})


def newest_ranks(parts: Mapping[str, Part], nodes: Mapping[str, int]) -> dict[int, str]:
    """The host of each rank, in the newest attempt that its host knows."""
    attempts = sorted({min(parts[host].attempt, _newest_attempt(parts, nodes)) for host in nodes if host in parts})
    owners = {}
    for attempt in attempts:
        for host, ranks in _claimed(parts, nodes, attempt).items():
            owners.update(dict.fromkeys(ranks, host))
    return owners


def _newest_attempt(parts: Mapping[str, Part], nodes: Mapping[str, int]) -> int:
    """The attempt of the head, which starts attempts; without the head, the newest one that a host knows."""
    known = [(nodes[host], parts[host].attempt) for host in nodes if host in parts]
    head = head_of(parts[host] for host in nodes if host in parts)
    at_head = [attempt for node, attempt in known if node == head]
    return max(at_head or (attempt for _, attempt in known))


def _claimed(parts: Mapping[str, Part], nodes: Mapping[str, int], attempt: int) -> dict[str, range]:
    """The ranks that hosts claim in an attempt, without hosts whose claims overlap; the head is always trusted."""
    newest = _newest_attempt(parts, nodes)
    head = head_of(parts[host] for host in nodes if host in parts)
    claimed = {
        host: range(part.first_rank, part.first_rank + part.nproc)
        for host in nodes
        if (part := parts.get(host)) and min(part.attempt, newest) == attempt and part.first_rank is not None
    }
    return {
        host: ranks
        for host, ranks in claimed.items()
        if nodes[host] == head
        or not any(
            ranks.start < others.stop and others.start < ranks.stop
            for other, others in claimed.items()
            if other != host
        )
    }


def _places(nprocs: Sequence[int], team: int) -> list[range]:
    """The ranks of each node in the first attempt; the nodes after the first `team` are spares, which have none."""
    places, end = [], 0
    for number, nproc in enumerate(nprocs):
        places.append(range(end, end + nproc) if number < team else range(0))
        end += nproc
    return places
