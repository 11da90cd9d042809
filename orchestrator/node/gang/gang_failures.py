"""Failures that no process reported: what the gang says of a node, or of all. Pure."""

from typing import Any, Dict, List, Sequence

from .gang_events import Lost, Stalled
from .gang_state import Phase, State

NO_MAJORITY = "membership-changed"  # the code of a failure for which the head is not to blame: others were silent
MOST = 16  # earlier failures in a verdict


def failure_of(state: State, node: int, what: str, at: float) -> Dict[str, Any]:
    """A failure that no process reported."""
    return {"host": state.nodes[node].host, "node": node, "rank": None, "what": what, "at": at}


def fenced(state: State, node: int, at: float) -> Dict[str, Any]:
    """A node has stopped its ranks, because it had no permit from the head any more."""
    if state.silent or node == state.head:
        return no_majority(state, state.silent, at)
    return dict(failure_of(state, node, "was cut off from the head", at), lost=True)


def no_majority(state: State, silent: Sequence[int], at: float) -> Dict[str, Any]:
    """Of the head, which is not to blame. `silent`: the nodes that did not answer it."""
    hosts = ", ".join(state.nodes[node].host for node in silent if node < len(state.nodes))
    what = "no majority of the hosts answered%s" % (" (silent: %s)" % hosts if hosts else "")
    return dict(failure_of(state, state.head, what, at), lost=True, code=NO_MAJORITY)


def stalled(state: State, event: Stalled) -> Dict[str, Any]:
    quiet = "no rank printed a line for %d s" % event.quiet
    for node in state.team:
        for rank in event.frozen.get(str(node), []):
            what = "rank %d: stopped by a signal (SIGSTOP), and %s" % (rank, quiet)
            return dict(failure_of(state, node, what, event.at), rank=rank, stalled=True)
    return dict(failure_of(state, 0, quiet, event.at), node=None, host="all hosts", stalled=True)


def earlier_failures(state: State) -> List[Dict[str, Any]]:
    """The first failure of each attempt before this one; of very many, the newest."""
    return list(state.failures[-MOST:])


def outcome_of(state: State) -> str:
    if state.first_failure is None:
        return "stopped" if state.resumable else "killed"
    return "lost" if state.first_failure.get("lost") else "failed"


def was_silent_before_the_failure(state: State, event: Lost) -> bool:
    """Its peers may fail at once when it dies, by a connection reset, long before its lease ends."""
    first = state.first_failure
    return (
        state.phase is Phase.STOPPING
        and state.elected_in != state.attempt  # else the times are by two clocks
        and first is not None
        and not first.get("lost")
        and state.nodes[event.node].node_rank is not None
        and event.heard_at is not None
        and event.heard_at <= state.since
    )
