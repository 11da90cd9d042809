"""Judge the silence of the other nodes: who is suspect, who is lost, who is asked to reach a suspect. Pure.

    heard ──silent for half a lease──> suspect ──silent to everybody for a lease, or refused──> lost
      ^                                   │
      └── heard again, on any path ───────┘

A node is heard directly or by a detour: through another node that still reaches it. Its refusal (nobody listens any
more on a port that was reached before) proves that its guard and recorder are gone. If all nodes fall silent at once,
it is more likely that this host or its switch is cut off: then a second lease has to pass, if the nodes wait as well.
"""

import enum
from typing import Dict, NamedTuple, Sequence, Tuple

MOST_HELPERS = 3  # nodes that are asked to reach a suspect


class Silence(NamedTuple):
    """The silence of one other node."""

    node: int
    seconds: float  # since it was heard, on any path
    refused: bool = False


class Judgement(enum.Enum):
    HEARD = "heard"
    SUSPECT = "suspect"
    LOST = "lost"


def suspect_after(lease: float) -> float:
    """Seconds of silence."""
    return lease / 2


def all_silent(silences: Sequence[Silence], lease: float) -> bool:
    """Whether it may be our own network that has failed. One node alone says nothing about it."""
    return len(silences) > 1 and all(
        silence.seconds > suspect_after(lease) and not silence.refused for silence in silences
    )


def judge(silences: Sequence[Silence], lease: float, nodes_wait: bool = True) -> Dict[int, Judgement]:
    """`silences`: of all nodes that should answer. `lease`: in seconds.

    `nodes_wait`: whether nodes wait for a head that they do not hear (run.rejoin_timeout). Without it they end after a
    lease, and waiting longer for them is of no use.
    """
    patience = 2 * lease if nodes_wait and all_silent(silences, lease) else lease
    return {silence.node: _judge_one(silence, lease, patience) for silence in silences}


def _judge_one(silence: Silence, lease: float, patience: float) -> Judgement:
    if silence.refused or silence.seconds > patience:
        return Judgement.LOST
    return Judgement.SUSPECT if silence.seconds > suspect_after(lease) else Judgement.HEARD


def choose_helpers(silences: Sequence[Silence], suspect: int, lease: float) -> Tuple[int, ...]:
    """The nodes to ask: those after the suspect, in a circle, so that the helpers of many suspects differ."""
    heard = [
        silence.node
        for silence in silences
        if silence.node != suspect and not silence.refused and silence.seconds <= suspect_after(lease)
    ]
    after = [node for node in heard if node > suspect]
    return tuple((after + [node for node in heard if node < suspect])[:MOST_HELPERS])
