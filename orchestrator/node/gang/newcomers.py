"""A host is added to a run on request: as a spare, which the next attempt may take. Pure."""

from typing import FrozenSet, Iterator, Optional, Tuple

from .election_state import LONE_HEAD
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


def first_voters(state: State) -> Tuple[int, ...]:
    """See `gang_state.State.voters`. Of two hosts, neither has a majority without the other one, so the head votes."""
    return (state.head,) if state.elects and len(state.nodes) == LONE_HEAD else ()


def voters(state: State) -> FrozenSet[int]:
    """Who should vote, where a head can be elected: a host that was added from its first link on.

    A host that is drained votes until it has no ranks any more. Only then it may end: of several that leave at once,
    the others might else be no majority.

    Of two hosts, neither has a majority without the other one. When only two are left, only the head votes, so that
    the run can lose the other one.
    """
    members = _members(state)
    head_stays = state.head in members and state.nodes[state.head].leaves is None
    if len(members) == 2 and head_stays and state.voters and members >= set(state.voters):
        return frozenset({state.head})
    return members


def _members(state: State) -> FrozenSet[int]:
    return frozenset(
        number
        for number, node in enumerate(state.nodes)
        if not (node.added and node.phase is NodePhase.ABSENT) and not _has_left(state, number)
    )


def keep_majority(state: State, number: int) -> bool:
    """Whether those that vote when this node has left, and can be reached now, are a majority of them."""
    left = _members(state) - {number}
    nodes = [state.nodes[other] for other in left]
    return 2 * sum(node.phase not in GONE and not node.away for node in nodes) > len(nodes)


def _has_left(state: State, number: int) -> bool:
    node = state.nodes[number]
    return node.leaves is not None and (node.phase in GONE or (node.node_rank is None and number != state.head))


def may_end(state: State, number: int) -> bool:
    """Whether a host that was drained, and has no ranks, is needed no more."""
    if not state.elects or number == state.head:
        return number != state.head
    return number not in state.voters if state.voters else state.nodes[number].added


def lines(before: State, after: State) -> Iterator[str]:
    """What the log says of it."""
    for number, node in enumerate(after.nodes):
        was_absent = number >= len(before.nodes) or before.nodes[number].phase is NodePhase.ABSENT
        if node.added and was_absent and node.phase is NodePhase.JOINED:
            yield "%s was added; it is a spare until the next attempt" % node.host
