"""What the head says of a change in the gang's state: lines for the log. Pure."""

from typing import Iterator, Optional

from ..gang import drain, gate, newcomers, team
from ..gang.gang_state import GONE, NodePhase, Phase, State
from ..host import network
from ..recorder import notify


def lines(before: State, after: State) -> Iterator[str]:
    if after.attempt != before.attempt:
        hosts = ", ".join(node.host for node in after.members)
        endpoint = network.endpoint(after.master_addr, after.master_port)
        yield "attempt %d on %s, rendezvous at %s" % (after.attempt, hosts, endpoint)
    if after.head != before.head:
        old, new = before.nodes[before.head].host, after.nodes[after.head].host
        was_lost = after.nodes[before.head].phase is NodePhase.LOST
        what = "has left the lead" if drain.has_to_resign(before) else "was lost" if was_lost else "had no majority"
        yield "the head %s %s; %s leads now" % (old, what, new)
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
        hosts = ", ".join(team.missing(after))
        what = "be healthy" if gate.unfit_hosts(after) else "come back"
        yield "waiting for %s to %s (up to %s)" % (hosts, what, duration(after.rejoin_timeout))
    elif plans_restart(before, after):
        yield _what_follows(after) if not after.hands_over else "the other hosts elect another head now"
    elif after.stopped_by is not None and before.stopped_by is None:
        yield "stopping all nodes: requested by %s" % after.stopped_by
    if after.verdict is not None and before.verdict is None:
        outcome = notify.WORDS[after.verdict["state"]]
        why = after.verdict["no_restart_reason"] if after.max_restarts or len(after.nodes) > after.min_nodes else None
        yield "the run %s%s" % (outcome, "; not restarted: %s" % why if why else "")


def news(before: State, after: State) -> Optional[str]:
    """What has happened that people want to be told of, as a state of notify.py; the end of the run left out."""
    if begins_to_wait(before, after):
        return "waiting"
    if plans_restart(before, after):
        return "restarting"
    return "starting" if before.attempt == 0 < after.attempt else None


def begins_to_wait(before: State, after: State) -> bool:
    return team.waits_for_nodes(after) and not team.waits_for_nodes(before)


def plans_restart(before: State, after: State) -> bool:
    """Whether it has become clear on which nodes the next attempt runs."""
    if after.phase is not Phase.RESTARTING or team.waits_for_nodes(after):
        return False
    return before.phase is not Phase.RESTARTING or team.waits_for_nodes(before)


def after_loss(state: State) -> str:
    """What is left of the hosts after a lost one, for people far from a terminal. "" after another failure."""
    first = state.first_failure
    if first is None or not first.get("lost"):
        return ""
    facts = []
    was_head = state.elected_in == state.attempt and first["node"] not in (None, state.head)
    if was_head:
        facts.append("%s leads now" % state.nodes[state.head].host)
    voters = newcomers.voters(state)
    members = [number for number in voters if not state.nodes[number].witness]
    if len(members) > 1:
        left = sum(_answers(state, number) for number in members)
        facts.append("%d of %d hosts are left" % (left, len(members)))
    present = sum(_answers(state, number) for number in voters)
    if state.elects and len(voters) > 1 and 2 * (present - 1) <= len(voters):
        facts.append("if one more is lost, there is no majority, and the run will wait")
    return ", ".join(facts)


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
    hosts = [node.host for node in after.nodes]
    next_team = team.next_team(after) or ()
    gone = [hosts[number] for number in after.team if number not in next_team]
    new = [hosts[number] for number in next_team if number not in after.team]
    counts = team.uses_restart(after, next_team)
    budget = "restart %d of %d" % (after.restarts_used + 1, after.max_restarts) if counts else "a restart"
    if gone and new:
        return "%s follows, with %s in place of %s" % (budget, ", ".join(new), ", ".join(gone))
    if gone:
        hosts_left = "1 host" if len(next_team) == 1 else "%d hosts" % len(next_team)
        return "%s follows, on %s, without %s" % (budget, hosts_left, ", ".join(gone))
    return "%s follows%s" % (budget, ", also on %s" % ", ".join(new) if new else "")
