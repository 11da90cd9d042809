"""The health gate: before another attempt, every host that may take part says whether it is well. Pure.

A host is asked as soon as the run is restarting. One with a problem gives way to a spare. Without a spare, the run
waits for it where no attempt can succeed there, and continues with it otherwise.
"""

from typing import Dict, Iterator, List, Optional, Tuple

from .gang_events import Check, Checked
from .gang_state import NodePhase, Phase, State, change_node, is_unfit, problems
from .team import missing, next_team

RECHECK, RECHECK_SHARE = 5.0, 0.02
"""A host with a problem is asked again after so many seconds, or after this share of the time that the run has waited:
each time adds to the log of the gang, and somebody may take a day to replace a GPU."""


def settle(state: State, at: float) -> State:
    """Ask the hosts that have to be asked now."""
    if not state.has_gate or state.phase is not Phase.RESTARTING:
        return state
    for number, node in enumerate(state.nodes):
        if node.witness:
            continue
        if node.phase in (NodePhase.LOST, NodePhase.RETURNED):
            if node.asked:
                state = change_node(state, number, asked=0)  # what it said before does not count
        elif node.asked <= state.attempt:
            state = change_node(state, number, asked=state.attempt + 1, asked_at=at, answered_at=0.0, problems=())
        elif node.problems and at - node.asked_at > max(RECHECK, RECHECK_SHARE * (at - state.since)):
            state = change_node(state, number, asked_at=at)
    return state


def order_of(state: State, number: int) -> Optional[Check]:
    """The check that a node has to answer."""
    node = state.nodes[number]
    is_open = state.phase is Phase.RESTARTING and node.asked == state.attempt + 1 and node.answered_at < node.asked_at
    return Check(node.asked, node.asked_at) if is_open else None


def on_checked(state: State, event: Checked) -> State:
    if state.phase is not Phase.RESTARTING or event.attempt != state.nodes[event.node].asked:
        return state
    after = change_node(state, event.node, answered_at=event.at, problems=tuple(event.problems))
    if next_team(after) is None and next_team(state) is not None:
        return after._replace(since=event.at)  # the run waits from now on
    return after


def lines(before: State, after: State) -> Iterator[str]:
    """What the log says of it."""
    if after.phase is not Phase.RESTARTING or before.attempt != after.attempt:
        return
    for number, node in enumerate(after.nodes):
        text, text_before = describe(problems(after, number)), describe(problems(before, number))
        if text and text != text_before:
            follows = "not used until this is fixed" if is_unfit(after, number) else "used only if there is no spare"
            yield "%s: %s; %s" % (node.host, text, follows)
        elif text_before and not text:
            yield "%s is healthy again" % node.host


def describe(found: Tuple[Dict[str, str], ...]) -> str:
    return ", ".join("%s [%s]" % (problem["text"], problem["code"]) for problem in found)


def unfit_hosts(state: State) -> Dict[str, str]:
    """What is wrong with the hosts of the team that have to be healthy again before they are used."""
    unfit = [number for number in state.team if is_unfit(state, number)]
    return {state.nodes[number].host: describe(problems(state, number)) for number in unfit}


def unfit(state: State) -> Dict[str, List[str]]:
    """By host: the codes of the problems for which the newest attempt leaves it out, or the next one has to."""
    codes = {}
    for number, node in enumerate(state.nodes):
        is_left_out = node.node_rank is None and node.asked == state.attempt and state.phase is not Phase.RESTARTING
        if is_left_out or is_unfit(state, number):
            codes[node.host] = sorted({problem["code"] for problem in node.problems})
    return {host: found for host, found in codes.items() if found}


def why_not_ready(state: State) -> str:
    """Why the run has waited in vain."""
    unfit = ["%s: %s" % each for each in unfit_hosts(state).items()]
    if unfit:
        return "%s, for %d s" % ("; ".join(unfit), state.rejoin_timeout)
    return "%s did not come back within %d s" % (", ".join(missing(state)), state.rejoin_timeout)
