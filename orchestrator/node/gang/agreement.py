"""With `run.resume`, an attempt begins when the output folders of its team agree. Pure.

The head has them brought to agreement (resumption.py) as soon as the team of the next attempt is known and healthy.
"""

from typing import Optional, Tuple

from . import team
from .gang_events import Agreed
from .gang_state import NodePhase, Phase, State

NOT_YET = (0, ())


def due(state: State, at: float, private: bool = False) -> Optional[Tuple[int, ...]]:
    """The team whose folders have to be brought to agreement now.

    `private`: ranks of a lost host, which may still run, cannot write into the folders of the team. So the folders can
    agree before these ranks are certain to be dead.
    """
    if not state.has_agreement or allows(state, pending(state)):
        return None
    is_ready = team.is_known if private else team.restart_is_due
    if state.phase is Phase.RESTARTING and not is_ready(state, at):
        return None
    return pending(state)


def restart_is_due(state: State, at: float) -> bool:
    """As team.restart_is_due, and the folders agree."""
    return team.restart_is_due(state, at) and allows(state, team.next_team(state))


def pending(state: State) -> Optional[Tuple[int, ...]]:
    """The team of the next attempt, if its folders are or have to be brought to agreement."""
    if state.phase is Phase.WAITING:
        return state.team if state.master_port and not absent(state) else None
    return team.next_team(state) if state.phase is Phase.RESTARTING else None


def allows(state: State, members: Optional[Tuple[int, ...]]) -> bool:
    """Whether the next attempt may begin with that team."""
    return members is not None and (not state.has_agreement or state.agreed == (state.attempt + 1, members))


def absent(state: State) -> Tuple[int, ...]:
    """Nodes that were lost between the request to start and the first attempt."""
    if state.phase is not Phase.WAITING or not (state.has_agreement and state.master_port):
        return ()
    return tuple(number for number in state.team if state.nodes[number].phase is not NodePhase.JOINED)


def on_agreed(state: State, event: Agreed) -> State:
    members = tuple(event.team)  # a list in gang.jsonl
    current = event.attempt == state.attempt + 1 and members == pending(state)
    return state._replace(agreed=(event.attempt, members)) if current else state


def settle(state: State) -> State:
    """A host that was away may have another folder since."""
    away = (NodePhase.LOST, NodePhase.RETURNED, NodePhase.ABSENT)
    if state.agreed != NOT_YET and any(state.nodes[number].phase in away for number in state.agreed[1]):
        return state._replace(agreed=NOT_YET)
    return state
