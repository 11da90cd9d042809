"""A host leaves a run on request: the attempt is stopped with the run's grace, and the next begins without it. Pure.

The head can leave where another one can be elected. It resigns when the attempt is stopped, and votes. The attempt of
the next head begins without it.
"""

from typing import Any, Dict, Iterator, List

from . import gate, newcomers
from .gang_events import Drain
from .gang_failures import earlier_failures, failure_of
from .gang_state import GONE, NodePhase, Phase, State, change_node, change_nodes, is_unfit, problems
from .team import next_team, successors, why_not_again


def on_requested(state: State, event: Drain) -> State:
    """The request changes nothing where the run could not continue: see `can_leave`."""
    if not can_leave(state, event.node):
        return state
    verdict = {
        "state": "stopped",
        "left": True,
        "first_failure": None,
        "failures": earlier_failures(state),
        "restarts": max(0, state.attempt - 1),
        "no_restart_reason": None,
        "not_again": None,  # deprecated: its old name
        "stopped_by": event.by,
        "attempt": state.attempt,
        "at": event.at,
    }
    after = change_node(state, event.node, leaves=verdict)
    if state.phase is not Phase.RUNNING or state.nodes[event.node].node_rank is None:
        return after
    return after._replace(phase=Phase.STOPPING, drained_by=event.by, stop_grace=event.grace, since=event.at)


def can_leave(state: State, number: int) -> bool:
    if not 0 <= number < len(state.nodes):
        return False
    if state.nodes[number].leaves is not None or state.nodes[number].witness:
        return False
    if state.phase in (Phase.WAITING, Phase.OVER) or state.stopped_by is not None:
        return False
    if state.elects and not newcomers.keep_majority(state, number):
        return False
    state = _without_unfit(state)
    if number == state.head:
        return _can_hand_over(state)
    if state.nodes[number].node_rank is None and (state.phase is Phase.RUNNING or not _can_continue(state)):
        return True
    if state.nodes[number].node_rank is not None and state.hands_over:
        return False
    return _can_continue(change_node(state, number, leaves={}))


def _without_unfit(state: State) -> State:
    """Hosts that the newest attempt left out for a problem may still have it."""
    unfit = gate.unfit(state)
    numbers = [number for number, node in enumerate(state.nodes) if node.node_rank is None and node.host in unfit]
    return change_nodes(state, numbers, leaves={})


def _can_hand_over(state: State) -> bool:
    """Whether the run continues without its head, whoever of the others is elected."""
    after = change_node(state, state.head, leaves={})
    led = [next_team(after._replace(head=number)) for number in successors(state)]
    return state.elects and bool(led) and None not in led


def has_to_resign(state: State) -> bool:
    """Whether the head was asked to leave, and no rank is left. Until another head is known, it stays so."""
    return state.hands_over and state.phase is Phase.RESTARTING


def can_resign(state: State) -> bool:
    """Whether a node that stays votes, too: the head may have been the only one that does."""
    voters = state.voters or range(len(state.nodes))
    return has_to_resign(state) and any(state.nodes[number].leaves is None for number in voters)


def on_lost(before: State, after: State, number: int, failure: Dict[str, Any]) -> State:
    """If a host is lost while another leaves, and the run cannot continue without it, its loss is the first failure."""
    if after.drained_by is None or after.first_failure is not None or after.phase is Phase.RUNNING:
        return after
    is_spare = after.nodes[number].node_rank is None
    if _can_continue(after) or (is_spare and not _can_continue(before)):
        return after
    return after._replace(first_failure=dict(failure, at_start=False))


def _can_continue(state: State) -> bool:
    return _can_hand_over(state) if state.hands_over else next_team(state) is not None


def on_elected(state: State, at: float) -> State:
    """The head has left on request. Only the next one knows whether the run waits for a host that was lost."""
    if state.first_failure is None or why_not_again(state) is None:
        return state
    return state._replace(phase=Phase.STOPPING, since=at)


def with_cause(state: State, at: float) -> State:
    """For a run that ends now. Nobody asked for that if only a host was to leave: what is missing is the failure."""
    if state.first_failure is not None or state.stopped_by is not None:
        return state
    for number in (*state.team, state.head):
        phase, stays = state.nodes[number].phase, state.nodes[number].leaves is None
        if stays and phase in (NodePhase.LOST, NodePhase.RETURNED):
            failure = dict(failure_of(state, number, "host lost", at), lost=True)
        elif stays and is_unfit(state, number):
            failure = failure_of(state, number, gate.describe(problems(state, number)), at)
        elif state.phase is Phase.STOPPING and phase is not NodePhase.EXITED and phase not in GONE:
            failure = failure_of(state, number, "did not stop within %d s" % (at - state.since), at)
        else:
            continue
        return state._replace(first_failure=dict(failure, at_start=False))
    return state


def drained_hosts(state: State) -> List[str]:
    """The hosts for which the attempt was stopped; none if it has failed."""
    if state.drained_by is None or state.first_failure is not None:
        return []
    return [state.nodes[number].host for number in state.team if state.nodes[number].leaves is not None]


def left_hosts(state: State) -> List[str]:
    """The hosts that were drained, and have no rank any more or cannot be reached."""
    drained = [node for node in state.nodes if node.leaves is not None]
    return [node.host for node in drained if node.node_rank is None or node.phase in GONE]


def leaving(state: State) -> List[int]:
    """The nodes that were asked to leave and have no rank any more."""
    return [number for number, node in enumerate(state.nodes) if node.leaves is not None and node.node_rank is None]


def lines(before: State, after: State) -> Iterator[str]:
    """What the log says of it."""
    for number, node in enumerate(after.nodes):
        if node.leaves is not None and before.nodes[number].leaves is None:
            rest = "stopping all nodes, to continue without it" if after.drained_by else "it is not used any more"
            rest += ", with another head" if number == after.head else ""
            yield "draining %s: requested by %s; %s" % (node.host, node.leaves["stopped_by"], rest)
