"""What the head says of a change in the gang's state: lines for the log, and news for notifications. Pure."""

import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..gang import drain, gate, newcomers, team
from ..gang.gang_state import GONE, NodePhase, Phase, State, is_unfit
from ..host import network
from ..recorder import notify
from .network_watch import NetworkWatch


def lines(before: State, after: State) -> Iterator[str]:
    if after.attempt != before.attempt:
        hosts = ", ".join(node.host for node in after.members)
        endpoint = network.endpoint(after.master_addr, after.master_port)
        yield "attempt %d on %s, rendezvous at %s" % (after.attempt, hosts, endpoint)
    if after.head != before.head:
        old, new = before.nodes[before.head].host, after.nodes[after.head].host
        yield "the head %s %s; %s leads now" % (old, _why_replaced(before, after), new)
    for number, node in enumerate(after.nodes):
        was_lost = number < len(before.nodes) and before.nodes[number].phase is NodePhase.LOST
        if node.phase is NodePhase.RETURNED and was_lost:
            yield "%s is back" % node.host
        elif node.witness and node.phase is NodePhase.LOST and not was_lost:
            yield "the witness %s was lost; the run continues without it" % node.host
    yield from drain.lines(before, after)
    yield from newcomers.lines(before, after)
    yield from after.notes[len(before.notes) :]
    yield from _failure(before, after)
    yield from gate.lines(before, after)
    if begins_to_wait(before, after):
        yield "waiting %s (up to %s)" % (_awaited(after), duration(after.rejoin_timeout))
    elif plans_restart(before, after):
        yield _what_follows(after) if not after.hands_over else "the other hosts elect another head now"
    elif after.stopped_by is not None and before.stopped_by is None:
        yield "stopping all nodes: requested by %s" % after.stopped_by
    if after.verdict is not None and before.verdict is None:
        outcome = notify.WORDS[after.verdict["state"]]
        why = after.verdict["no_restart_reason"] if after.max_restarts or len(after.nodes) > after.min_nodes else None
        yield "the run %s%s" % (outcome, "; not restarted: %s" % why if why else "")


class News(NamedTuple):
    """Of what people are notified."""

    state: str  # of notify.py
    attempt: int
    failure: Optional[Dict[str, Any]] = None
    drained: Sequence[str] = ()
    more: str = ""


def news(before: State, after: State, notes: Sequence[str] = ()) -> Optional[News]:
    """The news of a change; the end of the run left out.

    A restart is news once it begins: until then, the health check may find that the run has to wait. `notes`: those of
    the gang since the attempt before has ended.
    """
    if begins_to_wait(before, after):
        drained = drain.drained_hosts(after)
        return News("waiting", after.attempt, after.first_failure, drained, _whom_it_awaits(after))
    if not before.attempt < after.attempt:
        return None
    if before.attempt == 0:
        return News("starting", after.attempt)
    change = _change_of_team(before, after.team)
    facts = ["attempt %d runs %s" % (after.attempt, change)] if change else []
    facts += ["%s: %s" % each for each in gate.unfit_hosts(before).items()]
    facts += [*after_loss(before), *notes]
    return News("restarting", before.attempt, before.first_failure, drain.drained_hosts(before), "; ".join(facts))


def _why_replaced(before: State, after: State) -> str:
    if drain.has_to_resign(before) or team.gives_way(before) or NetworkWatch.cuts_off_head(before):
        return "has left the lead"
    return "was lost" if after.nodes[before.head].phase is NodePhase.LOST else "had no majority"


def _whom_it_awaits(state: State) -> str:
    """With what is wrong with the hosts that answer."""
    unfit = gate.unfit_hosts(state)
    wrong = " (%s)" % "; ".join("%s: %s" % each for each in unfit.items()) if unfit else ""
    return "it waits %s%s %s" % (_awaited(state), wrong, wait_until(state.since + state.rejoin_timeout))


def wait_until(end: float) -> str:
    """`end`: in Unix time, s."""
    return time.strftime("until %Y-%m-%dT%H:%M:%SZ, and then ends", time.gmtime(end))


def lost_hosts(state: State) -> List[str]:
    """Those of the team that the run waits for, without those that answer and have a problem."""
    unfit = gate.unfit_hosts(state)
    return [host for host in team.missing(state) if host not in unfit]


def _awaited(state: State) -> str:
    missing, unfit, gone = team.missing(state), gate.unfit_hosts(state), lost_hosts(state)
    awaited = ["for %s to come back" % ", ".join(gone)] if gone else []
    awaited += ["for %s to be healthy" % ", ".join(unfit)] if unfit else []
    enough = state.min_nodes - (len(state.team) - len(missing))
    suffix = " (%d of them %s enough)" % (enough, "is" if enough == 1 else "are") if 0 < enough < len(missing) else ""
    return " and ".join(awaited) + suffix


def begins_to_wait(before: State, after: State) -> bool:
    return team.waits_for_nodes(after) and not team.waits_for_nodes(before)


def plans_restart(before: State, after: State) -> bool:
    """Whether it has become clear on which nodes the next attempt runs."""
    if after.phase is not Phase.RESTARTING or team.waits_for_nodes(after):
        return False
    return before.phase is not Phase.RESTARTING or team.waits_for_nodes(before)


def after_loss(state: State) -> List[str]:
    """What is left of the hosts after a lost one, for people far from a terminal. Nothing after another failure."""
    first = state.first_failure
    if first is None or not first.get("lost"):
        return []
    facts = []
    if state.elected_in == state.attempt and first["node"] not in (None, state.head):
        facts.append("%s leads now" % state.nodes[state.head].host)
    voters = newcomers.voters(state)
    members = [number for number in voters if not state.nodes[number].witness]
    if len(members) > 1:
        left = sum(_answers(state, number) and not is_unfit(state, number) for number in members)
        facts.append("%d of %d hosts are left" % (left, len(members)))
    present = sum(_answers(state, number) for number in voters)
    if state.elects and len(voters) > 1 and 2 * (present - 1) <= len(voters):
        facts.append("if one more is lost, there is no majority, and the run will wait")
    return facts


def _answers(state: State, number: int) -> bool:
    return state.nodes[number].phase not in GONE and not state.nodes[number].away


def duration(seconds: float) -> str:
    return "%d min" % (seconds // 60) if seconds >= 120 and seconds % 60 == 0 else "%d s" % seconds


def _failure(before: State, after: State) -> Iterator[str]:
    first = after.first_failure
    if first is None:
        return
    if before.first_failure is None:
        last_line = " (%s)" % first["said"] if first.get("said") else ""
        yield "first failure: %s: %s%s; stopping all nodes" % (first["host"], first["what"], last_line)
    elif first != before.first_failure:
        what = "%s: %s" % (first["host"], first["what"])
        yield "first failure, seen late: %s; it was silent before the other host failed" % what


def _what_follows(after: State) -> str:
    """Describe the restart: on which hosts, and what it takes from the budget."""
    next_team = team.next_team(after) or ()
    counts = team.uses_restart(after, next_team)
    budget = "restart %d of %d" % (after.restarts_used + 1, after.max_restarts) if counts else "a restart"
    change = _change_of_team(after, next_team)
    return "%s follows%s%s" % (budget, ", " if change else "", change)


def _change_of_team(state: State, next_team: Tuple[int, ...]) -> str:
    """How another team differs from that of the state. "" if it does not."""
    hosts = [node.host for node in state.nodes]
    gone = [hosts[number] for number in state.team if number not in next_team]
    new = [hosts[number] for number in next_team if number not in state.team]
    if gone and new:
        return "with %s in place of %s" % (", ".join(new), ", ".join(gone))
    if gone:
        hosts_left = "1 host" if len(next_team) == 1 else "%d hosts" % len(next_team)
        return "on %s, without %s" % (hosts_left, ", ".join(gone))
    return "also on %s" % ", ".join(new) if new else ""
