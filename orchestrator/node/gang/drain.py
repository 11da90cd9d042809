"""A host leaves a run on request: the attempt is stopped with the run's grace, and the next begins without it. Pure."""

from typing import Any, Dict, Iterator

from .gang_events import Drain
from .gang_failures import earlier_failures
from .gang_state import Phase, State, change_node
from .team import next_team, why_not_again


def on_requested(state: State, event: Drain) -> State:
    """The request changes nothing where the run could not continue: see `can_leave`."""
    if not can_leave(state, event.node):
        return state
    verdict = {
        "state": "stopped",
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
    if number == state.head or not 0 <= number < len(state.nodes):
        return False
    if state.nodes[number].leaves is not None or state.nodes[number].witness:
        return False
    if state.phase in (Phase.WAITING, Phase.OVER) or state.stopped_by is not None:
        return False
    return state.nodes[number].node_rank is None or next_team(change_node(state, number, leaves={})) is not None


def on_lost(state: State, number: int, failure: Dict[str, Any]) -> State:
    """If a host is lost while another leaves, and the run cannot continue, its loss is the first failure."""
    pending = state.drained_by is not None and state.first_failure is None and state.phase is not Phase.RUNNING
    if not pending or state.nodes[number].node_rank is None or why_not_again(state) is None:
        return state
    return state._replace(first_failure=dict(failure, at_start=False))


def lines(before: State, after: State) -> Iterator[str]:
    """What the log says of it."""
    for number, node in enumerate(after.nodes):
        if node.leaves is not None and before.nodes[number].leaves is None:
            rest = "stopping all nodes, to continue without it" if after.drained_by else "it is not used any more"
            yield "draining %s: requested by %s; %s" % (node.host, node.leaves["stopped_by"], rest)
