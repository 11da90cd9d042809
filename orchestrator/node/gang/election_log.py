"""The log of an election on one node: bring it to what another node has, and who votes by it. Pure.

The voters change by entries of the log, one node at a time, so any majority before a change shares a node with any
majority after it (Raft's dissertation, chapter 4). The newest set counts from the moment that a node has its entry.
"""

from typing import FrozenSet, Tuple

from .election_state import ENTRIES_A_BEAT, Action, Ask, Copy, Entry, State, Write, write


def accept(state: State, length: int, digest: str, entries: Tuple[Entry, ...]) -> Tuple[State, Tuple[Action, ...]]:
    """Bring the log to what the head has. An older beat that comes late must not cut what a newer one brought."""
    if length > state.length or state.digests[length] != digest:
        return state, ()
    goal = write(state, length, entries)
    verified = max(state.verified, goal.length)
    if state.digests[length : goal.length + 1] == goal.digests[length:]:
        return state._replace(verified=verified), ()
    same = length
    while same < state.length and state.digests[same + 1] == goal.digests[same + 1]:
        same += 1
    if same < state.committed:
        return state, ()  # a log that was damaged on disk: this one, or the head's
    return goal._replace(verified=verified), (Write(same, goal.log[same:]),)


def copy_for(state: State, ask: Ask) -> Copy:
    """What a candidate needs whose log is older."""
    is_prefix = ask.length <= state.length and state.digests[ask.length] == ask.digest
    length = ask.length if is_prefix else min(ask.committed, state.length)
    entries = state.log[length : length + ENTRIES_A_BEAT]
    return Copy(state.ballot.epoch, state.last_epoch, state.length, length, state.digests[length], entries)


def is_current(state: State) -> bool:
    """The head knows all that earlier heads have committed, as an entry of its own epoch is committed."""
    return state.committed > 0 and state.log[state.committed - 1].epoch == state.ballot.epoch


def commit(state: State) -> State:
    """Entries of earlier epochs count only together with one of this epoch (Raft, section 5.4.2)."""
    if state.committed == state.length:
        return state
    others = sorted((state.lengths[node] or 0 for node in state.voters - {state.config.node}), reverse=True)
    length = [state.length, *others][state.quorum - 1]
    if length > state.committed and state.log[length - 1].epoch == state.ballot.epoch:
        return state._replace(committed=length)
    return state


def may_change_voters(state: State, voters: FrozenSet[int]) -> bool:
    """Whether the head may have these voters from now on.

    The last change has to be committed, in this epoch or before an entry of it: two heads that know of different
    changes would count majorities without a common node. And a new voter has the log already, so that the next entry
    need not wait for it. A majority of the new voters has all of it: of two that are left, one may be down already.
    """
    is_settled = is_current(state) and state.voter_sets[state.committed] == state.voters
    is_ready = all(state.length_of(node) == state.length for node in voters - state.voters)
    up_to_date = [node for node in voters if node == state.config.node or state.length_of(node) == state.length]
    has_majority = 2 * len(up_to_date) > len(voters)
    return is_settled and is_ready and has_majority and len(voters ^ state.voters) == 1 and state.config.node in voters
