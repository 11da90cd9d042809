"""The state of a gang: its nodes, the phases of nodes and run, the current attempt. Pure data."""

import enum
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

from .election_state import SHORTER

# s between TERM and KILL after a failure: a rank blocked in a collective runs no Python signal handler
FAILURE_GRACE = 1.0
# s after the loss of a node until its ranks are dead: its permit has lapsed by then, and its guard kills them at once
KILL_WINDOW = 2.0

# codes of problems with which no attempt can succeed; with any other a host is used where there is no spare
UNFIT = ("gpu-lost", "disk-full", "filesystem-hung", "gloo-ifname-no-match", "nccl-wrong-nic", "nccl-ib-link-fault")


def kill_window(lease: float, elects: bool) -> float:
    """Seconds after the loss of a node until its ranks are dead.

    Without elections, a permit lasts for a lease by the clock of the node, and a node is lost after a lease by the
    clock of the head. Either may be wrong by DRIFT.
    """
    return KILL_WINDOW if elects else KILL_WINDOW + (1 / SHORTER - 1) * lease


class Phase(enum.Enum):
    """The phase of a run. The diagram in gang.py shows what leads from one to the next."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    OVER = "over"


class NodePhase(enum.Enum):
    """The phase of a node in the current attempt."""

    ABSENT = "absent"  # its recorder has no link to the head's yet
    JOINED = "joined"
    RUNNING = "running"
    EXITED = "exited"  # no process of the attempt is left
    LOST = "lost"  # silent for a lease
    RETURNED = "returned"  # it was lost, has a link again, and has to stop what may still run there
    DISCONNECTED = "left"  # its link was closed after the run had ended


# phases of a node that has nothing to do any more, or cannot be asked to
GONE = (NodePhase.DISCONNECTED, NodePhase.LOST, NodePhase.ABSENT)
UNREACHABLE = (NodePhase.DISCONNECTED, NodePhase.ABSENT)


class Node(NamedTuple):
    host: str
    nproc: int
    node_rank: Optional[int]  # in the team; None: a spare
    first_rank: int = 0
    phase: NodePhase = NodePhase.ABSENT
    ordered_at: float = 0.0
    away: bool = False  # silent for a lease since its part of the attempt was done
    leaves: Optional[Dict[str, Any]] = None  # its verdict, when it was asked to leave the run
    lost_in: int = -1  # the attempt in which it was lost last
    asked: int = 0  # the attempt for which its health was asked last
    asked_at: float = 0.0
    answered_at: float = 0.0
    problems: Tuple[Dict[str, str], ...] = ()  # its last answer: code, text
    witness: bool = False  # it only votes, and never gets ranks
    added: bool = False  # after the start


class State(NamedTuple):
    nodes: Tuple[Node, ...]
    max_restarts: int = 0
    min_nodes: int = 1
    max_nodes: int = 0  # a team with fewer nodes grows in the next attempt
    rejoin_timeout: float = 0.0  # s to wait for lost nodes; 0: they have no way back
    head: int = 0  # whose recorder decides; the first of each team
    elected_in: int = -1  # the attempt in which the head was elected
    silent: Tuple[int, ...] = ()  # without whom the head had no majority in this attempt
    team: Tuple[int, ...] = ()
    world_size: int = 0
    phase: Phase = Phase.WAITING
    attempt: int = 0
    started_at: float = 0.0  # when the attempt was ordered
    master_addr: str = ""
    master_port: int = 0
    first_failure: Optional[Dict[str, Any]] = None  # of this attempt
    failures: Tuple[Dict[str, Any], ...] = ()  # the first of each attempt before
    restarts_used: int = 0  # of max_restarts
    lost_at: float = float("-inf")  # when a node was found to be silent last
    stop_grace: float = FAILURE_GRACE
    stopped_by: Optional[str] = None
    resumable: bool = False  # it was stopped after the ranks were asked for a snapshot
    drained_by: Optional[str] = None  # who asked for the stop of this attempt, after which a host leaves
    since: float = 0.0  # when the phase began
    verdict: Optional[Dict[str, Any]] = None
    has_gate: bool = False  # hosts are asked whether they are well before another attempt
    has_agreement: bool = False  # output folders are brought to agreement before each attempt
    elects: bool = False  # another head can be elected
    kill_window: float = KILL_WINDOW  # s
    voters: Tuple[int, ...] = ()  # who votes since the last change; before the first one, all that are not added
    agreed: Tuple[int, Tuple[int, ...]] = (0, ())  # for which attempt, of which team
    led: Tuple[int, ...] = ()  # nodes on which rank 0 has run
    notes: Tuple[str, ...] = ()  # what people were told, besides what follows from the rest

    @property
    def members(self) -> Tuple[Node, ...]:
        """The nodes of the team."""
        return tuple(self.nodes[number] for number in self.team)

    @property
    def hands_over(self) -> bool:
        """Whether the head was asked to leave the run: as soon as no rank is left, it resigns (drain.py)."""
        return self.nodes[self.head].leaves is not None


def others_gone(state: State) -> bool:
    """Whether the head is the last node that has something to do."""
    return all(node.phase in GONE for number, node in enumerate(state.nodes) if number != state.head)


def problems(state: State, number: int) -> Tuple[Dict[str, str], ...]:
    """The health problems of a host, if they are known for the next attempt."""
    node = state.nodes[number]
    return node.problems if node.asked == state.attempt + 1 else ()


def is_unfit(state: State, number: int) -> bool:
    """Whether no attempt can succeed on that host at the moment."""
    return any(problem["code"] in UNFIT for problem in problems(state, number))


def change_node(state: State, number: int, **changes: Any) -> State:
    return change_nodes(state, [number], **changes)


def change_nodes(state: State, numbers: Iterable[int], **changes: Any) -> State:
    nodes = list(state.nodes)
    for number in numbers:
        nodes[number] = nodes[number]._replace(**changes)
    return state._replace(nodes=tuple(nodes))
