"""What the gang is told and what it decides, as values: events, and the orders that follow from them. Pure.

An event's `at` is in seconds since 1970 by a clock that is never set back (head.py).
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

# --- events: what happened


class Joined(NamedTuple):
    """A node's recorder has a link to the head's."""

    node: int
    at: float


class StartRequested(NamedTuple):
    """The commit point: from here on the run does not need its controller."""

    master_addr: str
    master_port: int
    at: float


class Started(NamedTuple):
    node: int
    attempt: int
    at: float


class Failed(NamedTuple):
    """A process of the attempt failed; its node still runs."""

    node: int
    attempt: int
    failure: Dict[str, Any]
    at: float


class Exited(NamedTuple):
    """A node has no process of the attempt any more. `fenced`: it stopped them because it had no link to the head."""

    node: int
    attempt: int
    ok: bool
    at: float
    fenced: bool = False


class Lost(NamedTuple):
    """A node has been silent for a whole lease, since `heard_at`."""

    node: int
    at: float
    heard_at: Optional[float] = None


class HostRestarted(NamedTuple):
    """A node has a new guard that knows of no attempt: its host was restarted, or guard and recorder were killed.

    `begun`: the newest attempt that an earlier guard of the node has begun. None: of a version that did not tell.
    """

    node: int
    at: float
    begun: Optional[int] = None


class Elected(NamedTuple):
    """Another node has become the head, or the same one again. `at` is by its clock from here on.

    `resigned`: the head before was not lost, but had no majority. `silent`: see NoMajority; empty: unknown.
    `heard_at`: when this node has heard the head before last; None: unknown.
    """

    node: int
    master_addr: str
    at: float
    resigned: bool = False
    silent: Sequence[int] = ()
    heard_at: Optional[float] = None


class NoMajority(NamedTuple):
    """The head decides again. It could not for a while, because too many voters did not answer: those of `silent`."""

    silent: Sequence[int]
    at: float


class Resumed(NamedTuple):
    """The head decides again after a while without authority or without a recorder: that time does not count."""

    at: float


class Disconnected(NamedTuple):
    """A node's link was closed (by its end, or by an accident that Lost will tell)."""

    node: int
    at: float


class StopRequested(NamedTuple):
    """`resumable`: the ranks were asked for a snapshot before, and the run is to be continued by another one."""

    by: str
    grace: float
    at: float
    resumable: bool = False


class Drain(NamedTuple):
    """A host is asked to leave the run. `grace`: seconds for the ranks to save a snapshot."""

    node: int
    by: str
    grace: float
    at: float


class Added(NamedTuple):
    """A host is added to the run, as a spare. It has no link yet."""

    host: str
    nproc: int
    by: str
    at: float


class Voters(NamedTuple):
    """From here on, these nodes vote for the head. The election reads it (election_state.voters_of)."""

    nodes: List[int]
    at: float


class PortFound(NamedTuple):
    """The head has a free port for the next attempt: the kernel may not have released the old one yet.

    `master_addr`: the address of the head there; "": as in the attempt before.
    """

    port: int
    at: float
    master_addr: str = ""


class Stalled(NamedTuple):
    """No rank has printed anything for `quiet` seconds. `frozen`: ranks that the kernel says are stopped, by node."""

    attempt: int
    quiet: float
    frozen: Dict[str, List[int]]
    at: float


class Checked(NamedTuple):
    """A host says whether it is well enough for an attempt. `problems`: code and text of each."""

    node: int
    attempt: int
    problems: List[Dict[str, str]]
    at: float


class Agreed(NamedTuple):
    """The output folders of a team have been brought to agreement for an attempt (`run.resume`).

    `note`: what a reader of the events wants to know: files that are missing, or were kept. "" if nothing.
    """

    attempt: int
    team: Tuple[int, ...]
    at: float
    note: str = ""


class NotAgreed(NamedTuple):
    """They cannot be: `why` says it in one line. `node`: the host that is the reason."""

    attempt: int
    node: int
    why: str
    at: float


class Noted(NamedTuple):
    """What people should know, such as that snapshots stay on a host. It decides nothing."""

    note: str
    at: float


class Tick(NamedTuple):
    at: float


Event = Union[
    Joined,
    StartRequested,
    Started,
    Failed,
    Exited,
    Lost,
    HostRestarted,
    Elected,
    NoMajority,
    Resumed,
    Disconnected,
    StopRequested,
    Drain,
    Added,
    Voters,
    PortFound,
    Stalled,
    Checked,
    Agreed,
    NotAgreed,
    Noted,
    Tick,
]

# The names that gang.jsonl has for them: runs of other versions are read too.
EVENTS: Dict[str, Callable[..., Event]] = {
    "Joined": Joined,
    "StartRequested": StartRequested,
    "Started": Started,
    "Failed": Failed,
    "Exited": Exited,
    "Lost": Lost,
    "Restarted": HostRestarted,
    "Elected": Elected,
    "NoMajority": NoMajority,
    "Resumed": Resumed,
    "Left": Disconnected,
    "StopRequested": StopRequested,
    "Drain": Drain,
    "Added": Added,
    "Voters": Voters,
    "PortFound": PortFound,
    "Stalled": Stalled,
    "Checked": Checked,
    "Agreed": Agreed,
    "NotAgreed": NotAgreed,
    "Noted": Noted,
    "Tick": Tick,
}
_NAMES = {kind: name for name, kind in EVENTS.items()}


def event_name(event: Event) -> str:
    return _NAMES[type(event)]


# --- orders: what a node has to do


class Run(NamedTuple):
    attempt: int
    node_rank: int
    nnodes: int
    first_rank: int
    world_size: int
    master_addr: str
    master_port: int
    hosts: Sequence[Tuple[str, int]] = ()  # address and number of ranks of each, if a command needs them


class Stop(NamedTuple):
    attempt: int
    grace: float
    why: str
    stacks: bool  # of all ranks into the journal, before they are ended


class Commit(NamedTuple):
    """The run has begun. The first attempt follows when the hosts have the same outputs, which may take long."""


class Wait(NamedTuple):
    """A spare waits until it is needed. `team`: the hosts that do the work, which meet at `master_addr`."""

    team: Tuple[str, ...]
    master_addr: str = ""


class Check(NamedTuple):
    """Say whether this host is well enough for that attempt. `at`: the head's clock."""

    attempt: int
    at: float


class End(NamedTuple):
    verdict: Dict[str, Any]


Order = Union[Run, Stop, Commit, Wait, Check, End]


class Action(NamedTuple):
    node: int
    order: Order


# The names that orders have on the link.
ORDERS: Dict[str, Callable[..., Order]] = {
    "Run": Run,
    "Stop": Stop,
    "Commit": Commit,
    "Wait": Wait,
    "Check": Check,
    "End": End,
}
