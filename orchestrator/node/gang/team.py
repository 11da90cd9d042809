"""Decide whether there is a next attempt, on which nodes, and with which ranks. Pure."""

import re
from typing import Any, Dict, List, Optional, Tuple

from .gang_state import GONE, NodePhase, Phase, State, is_unfit, problems

BACKOFF, BACKOFF_MOST = 1.0, 30.0  # s; see _backoff
AT_START = 30.0  # s: a failure within these after the start of its attempt is one at start-up
FAILS_ALIKE = 3  # first failures in a row at start-up, all the same, after which the run is not started again
# What networks and file systems do at one start and not at the next: Python's OSError and its kin, torch's and NCCL's
TRANSIENT = re.compile(
    r"\[Errno -?\d+\]|\b(?:OS|IO|EOF|URL|HTTP|SSL|File\w+|\w*Connect\w*|\w*Timeout|Permission|BrokenPipe)Error\b"
    r"|\b\w*Timeout\b|\bgaierror\b|\bDist(?:Network|Store|Backend)Error\b|\bnccl(?:System|Remote)Error\b"
    r"|\bConnection (?:closed|reset|refused|timed out)\b|\b[Tt]imed out\b|\bEADDRINUSE\b|\b[Aa]ddress already in use\b"
    r"|\b(?:Input/output error|Stale file handle|No route to host|Broken pipe)\b"
)
CHECK_WINDOW = 10.0  # s for a host to say whether it is well; afterwards the run continues without its answer
FAILS_TOO_OFTEN = 2  # first failures of a run after which a host gives its place to a spare, if there is one


def place(state: State, team: Tuple[int, ...]) -> State:
    """Give the team its ranks."""
    nodes = [node._replace(node_rank=None, first_rank=0) for node in state.nodes]
    first_rank = 0
    for node_rank, number in enumerate(team):
        nodes[number] = nodes[number]._replace(node_rank=node_rank, first_rank=first_rank)
        first_rank += nodes[number].nproc
    return state._replace(nodes=tuple(nodes), team=team, world_size=first_rank)


def restart_is_due(state: State, at: float) -> bool:
    """Whether the next team is known, and nothing of the last one runs, so that the head has to look for a port."""
    return at >= state.lost_at + state.kill_window and is_known(state, at)


def is_known(state: State, at: float) -> bool:
    """Whether the back-off has passed and there is a healthy team. On a lost host, ranks may still run."""
    due = at >= state.since + _backoff(state)
    team = next_team(state) if state.phase is Phase.RESTARTING and due else None
    return team is not None and all(_is_checked(state, number, at) for number in team)


def _backoff(state: State) -> float:
    """None after an attempt that has trained for a while, nor the first time that one fails at its start.

    From the second such failure in a row on, it doubles.
    """
    in_a_row = 0
    for failure in reversed((*state.failures, state.first_failure or {})):
        if not failure.get("at_start"):
            break
        in_a_row += 1
    return min(BACKOFF_MOST, BACKOFF * 2 ** (in_a_row - 2)) if in_a_row > 1 else 0.0


def _is_checked(state: State, number: int, at: float) -> bool:
    node = state.nodes[number]
    if not state.has_gate or node.asked <= state.attempt:
        return not state.has_gate
    return node.answered_at >= node.asked_at or at - node.asked_at > CHECK_WINDOW


def will_try_again(state: State) -> bool:
    ended = state.first_failure is not None or state.drained_by is not None
    return ended and state.stopped_by is None and why_not_again(state) is None


def why_not_again(state: State) -> Optional[str]:
    """Why a failed attempt is not followed by another one; None if it is, now or when lost nodes are back."""
    failure = state.first_failure or {}
    budget_is_spent = state.restarts_used >= state.max_restarts
    spent = "run.max_restarts (%d) is used up" % state.max_restarts if state.max_restarts else "max_restarts is 0"
    if not failure.get("lost") and (failure or state.drained_by is None):
        if budget_is_spent:
            return spent
        alike = [_same_at_start(failed) for failed in (*state.failures, failure)[-FAILS_ALIKE:]]
        if len(alike) == FAILS_ALIKE and alike[0] is not None and len(set(alike)) == 1:
            return "it failed three times in a row at its start, in the same way"
    if next_team(state) is not None or state.hands_over:
        return None
    if state.rejoin_timeout:
        return spent if budget_is_spent else None
    has_spares = any(node.node_rank is None and not node.witness for node in state.nodes)
    return "a host was lost, and no spare is left" if has_spares else "a host was lost"


def waits_for_nodes(state: State) -> bool:
    """Whether the next attempt begins as soon as enough nodes are back."""
    waits = state.phase is Phase.RESTARTING and next_team(state) is None
    return waits and not state.hands_over and not gives_way(state)


def gives_way(state: State) -> bool:
    """Whether the head has a problem and gives up the lead, so that the run continues under any of the others."""
    if not (state.elects and state.phase is Phase.RESTARTING and is_unfit(state, state.head)):
        return False
    others = [number for number in successors(state) if not is_unfit(state, number)]
    return bool(others) and all(next_team(state._replace(head=number)) for number in others)


def successors(state: State) -> List[int]:
    """The nodes that can be elected in place of the head."""
    return [
        number
        for number, node in enumerate(state.nodes)
        if number != state.head
        and node.phase not in (*GONE, NodePhase.RETURNED)
        and not (node.witness or node.away or node.leaves is not None)
    ]


def missing(state: State) -> Tuple[str, ...]:
    """Hosts of the team that are lost or have a problem, and are not ready for another attempt yet."""
    return tuple(state.nodes[number].host for number in state.team if not _is_ready(state, number))


def uses_restart(state: State, team: Tuple[int, ...]) -> bool:
    """Whether an attempt of this team takes one of max_restarts.

    Not after a drain, and not after a lost host where it uses up a spare instead, or a node above the least number.
    """
    lost_and_back = any(
        state.nodes[number].lost_in == state.attempt for number in team if state.nodes[number].node_rank is not None
    )
    failed = state.first_failure is not None and not state.first_failure.get("lost")
    return state.attempt > 0 and (lost_and_back or failed)


def next_team(state: State) -> Optional[Tuple[int, ...]]:
    """The nodes of the next attempt, in the order of node ranks; None when too few are left.

    A node that is lost, or whose host has a problem or failed too often, gives its place to the first spare. Without a
    spare, a lost node that is back takes its own place. The ranks of the others stay the same. There is no attempt
    without the head.
    """
    failed = [failure.get("node") for failure in (*state.failures, state.first_failure or {})]
    unreliable = {number for number in failed if number != state.head and failed.count(number) >= FAILS_TOO_OFTEN}
    doubtful = {number for number in range(len(state.nodes)) if problems(state, number)}
    excluded = unreliable | doubtful | {state.head}
    unused = [
        number
        for number, node in enumerate(state.nodes)
        if node.node_rank is None
        and node.phase is NodePhase.JOINED
        and not node.away
        and not node.witness
        and node.leaves is None
    ]
    spares = [number for number in unused if number not in excluded]
    last_resort = [number for number in unused if number in unreliable - doubtful]  # rather than to wait or to end
    if state.head not in state.team and _is_ready(state, state.team[0]):
        spares.append(state.team[0])  # the old head has lost its seat to the new one, and may take another
    team: List[int] = []
    seats = [(number, _is_ready(state, number)) for number in _seats(state)]
    empty = sum(not is_ready for _, is_ready in seats)  # after this seat
    for number, is_ready in seats:
        was_lost = state.nodes[number].lost_in == state.attempt
        # a seat that nobody else can take has the first right to a spare
        empty -= not is_ready
        gives_way = not is_ready or (len(spares) > empty and (was_lost or number in excluded))
        if number != state.head and spares and gives_way:
            team.append(spares.pop(0))
        elif number != state.head and last_resort and not is_ready:
            team.append(last_resort.pop(0))
        elif is_ready and (not was_lost or state.restarts_used < state.max_restarts):
            team.append(number)
    team += spares[: max(0, state.max_nodes - len(team))]
    return tuple(team) if len(team) >= state.min_nodes and team[:1] == [state.head] else None


def _seats(state: State) -> List[int]:
    """The team, with the head first. A new head that was a spare takes the seat of the old one."""
    others = [number for number in state.team if number != state.head]
    return [state.head, *(others if state.head in state.team else others[1:])]


def _is_ready(state: State, number: int) -> bool:
    node = state.nodes[number]
    gone = node.phase in (NodePhase.LOST, NodePhase.RETURNED) or node.away or node.leaves is not None
    return not gone and not is_unfit(state, number)


def _same_at_start(failure: Dict[str, Any]) -> Optional[Tuple[Any, ...]]:
    """What two failures have in common that a further start would only repeat: an import that fails, a bad argument."""
    if not failure.get("at_start") or failure.get("exit_code") is None:
        return None  # a signal comes from outside the script
    if TRANSIENT.search(failure.get("said") or ""):
        return None
    return failure["exit_code"], failure.get("said")
