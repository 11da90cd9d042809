"""A host is added to a run on request: as a spare, which the next attempt may take. Pure."""

from typing import FrozenSet, Iterator, Optional

from .gang_events import Added
from .gang_state import GONE, Node, NodePhase, Phase, State


def on_added(state: State, event: Added) -> State:
    """A host takes part in a run once. Only if it has never had a link may it be added again, with the same number."""
    if state.phase in (Phase.WAITING, Phase.OVER) or state.stopped_by is not None:
        return state
    node = Node(event.host, event.nproc, None, added=True)
    if all(known.host != event.host for known in state.nodes):
        return state._replace(nodes=(*state.nodes, node))
    number = number_of(state, event.host)
    if number is None:
        return state
    return state._replace(nodes=(*state.nodes[:number], node, *state.nodes[number + 1 :]))


def number_of(state: State, host: str) -> Optional[int]:
    """The number of a host that was added and has not joined yet."""
    for number, node in enumerate(state.nodes):
        if node.host == host and node.phase is NodePhase.ABSENT and node.node_rank is None:
            return number
    return None


def voters(state: State) -> FrozenSet[int]:
    """Who should vote, where a head can be elected: a host that was added from its first link on, until it has left."""
    return frozenset(
        number
        for number, node in enumerate(state.nodes)
        if not (node.added and node.phase is NodePhase.ABSENT) and not (node.leaves is not None and node.phase in GONE)
    )


def lines(before: State, after: State) -> Iterator[str]:
    """What the log says of it."""
    for number, node in enumerate(after.nodes):
        was_absent = number >= len(before.nodes) or before.nodes[number].phase is NodePhase.ABSENT
        if was_absent and node.phase is NodePhase.JOINED and after.attempt > 0 and node.node_rank is None:
            yield "%s was added; it is a spare until the next attempt" % node.host
