"""What one node knows of an election: epochs, votes, leases and the replicated log. Pure data.

Times are seconds by the clock of the node that has the state. That clock counts from the boot, is never set back, and
goes on while the host sleeps (CLOCK_BOOTTIME). A time of another node's clock is only ever sent back to it, as a Stamp.
"""

import enum
import hashlib
import json
from typing import Any, Callable, Dict, FrozenSet, NamedTuple, Optional, Tuple, Union

DRIFT = 0.05  # the most by which the rate of a clock differs from true time
# What ends after SHORTER * s by one clock has ended when any other clock has counted s.
SHORTER = (1 - DRIFT) / (1 + DRIFT)
BEATS_A_LEASE = 10  # a permit must survive a cut of 5 s with a lease of 8: it is up to two beats old when it is needed
SILENT_BEATS = 3  # without an answer after which a beat or its answer goes by another connection too
ENTRIES_A_BEAT = 64  # of the log in one message
_VOTERS = '{"event": "Voters", '  # how an entry begins that changes who votes
LONE_HEAD = 2  # nodes at the start of which only the head votes
FIRST_EPOCH = 1  # in which the head of the inventory leads without a vote


class Role(enum.Enum):
    FOLLOWER = "follower"
    TRIAL = "trial"  # asks whether it would win, which changes nothing on any node
    CANDIDATE = "candidate"
    HEAD = "head"


class Stamp(NamedTuple):
    """A time by one node's clock, which begins again at each boot."""

    boot: str
    at: float


class Entry(NamedTuple):
    """`text`: an event of the gang, in JSON. `epoch`: of the head that wrote it."""

    epoch: int
    text: str


class Ballot(NamedTuple):
    """The part that must be on disk before any answer that follows from it leaves the node."""

    epoch: int
    vote: Optional[int]  # given in this epoch
    leads: bool  # has won this epoch: a restarted recorder goes on as the head


class Config(NamedTuple):
    node: int
    nodes: int  # at the start, numbered from 0, spares and the witness too; see `first_voters`
    candidates: Tuple[int, ...]  # who may lead, in the order in which they try; without the witness
    lease: float  # s
    stop_window: float  # s by any clock from the lapse of a permit until the ranks under it are dead
    elects: bool  # False: the first head leads forever (`head_lost: stop`)

    @property
    def first_voters(self) -> FrozenSet[int]:
        """Of two, neither has a majority without the other one: the head votes alone until a third one is added."""
        return frozenset(self.candidates[:1] if self.nodes == LONE_HEAD else range(self.nodes))

    @property
    def beat(self) -> float:
        """Seconds between two messages to each node."""
        return self.lease / BEATS_A_LEASE

    @property
    def turn(self) -> float:
        """Seconds between the first attempts of two candidates: the first can win before the second tries."""
        return self.lease / 8

    @property
    def round_length(self) -> float:
        """Seconds in which the answers of a majority must arrive."""
        return self.lease / 4

    @property
    def position(self) -> Optional[int]:
        """Among the candidates; None: never leads."""
        return self.candidates.index(self.node) if self.elects and self.node in self.candidates else None

    def first_turn(self, at: float) -> float:
        """When this node may try to lead, if it hears no head from now on: in the order of the candidates."""
        return float("inf") if self.position is None else at + self.lease / SHORTER + self.position * self.turn

    def next_turn(self, at: float) -> float:
        """When to try again after a round, or after a vote for somebody who may not win."""
        return float("inf") if self.position is None else at + (1 + self.position) * self.turn


class State(NamedTuple):
    config: Config
    boot: str
    ballot: Ballot
    log: Tuple[Entry, ...]
    digests: Tuple[str, ...]  # of the first 0, 1, 2, ... entries
    voter_sets: Tuple[FrozenSet[int], ...]  # who votes, after so many entries
    heard_at: float  # the last message of any head, or when this node began
    campaign_at: float  # when to try to become the head
    begun_at: float
    role: Role = Role.FOLLOWER
    head: Optional[int] = None  # of this epoch, where known
    committed: int = 0  # so many entries are on a majority
    verified: int = 0  # so many entries are the same as on the head of this epoch
    permit_until: float = float("-inf")  # ranks may run here until then
    retired: bool = False  # it was the head and has resigned for good
    # of a candidate
    round: int = 0  # an answer counts only in the round in which it was asked for
    round_ends_at: float = 0.0
    grants: FrozenSet[int] = frozenset()
    # of the head; one for each node
    won_at: float = 0.0
    beat_at: float = 0.0
    acknowledged: Tuple[float, ...] = ()  # by this node's clock, when the newest acknowledged beat was sent
    lengths: Tuple[Optional[int], ...] = ()  # of the log, as far as a node has verified it
    stamps: Tuple[Optional[Stamp], ...] = ()  # the newest of each node, to be sent back
    stamped_at: Tuple[float, ...] = ()  # by this node's clock, when it received them
    learners: FrozenSet[int] = frozenset()  # nodes with a link, which get beats and the log whether they vote or not

    @property
    def length(self) -> int:
        return len(self.log)

    def length_of(self, node: int) -> Optional[int]:
        return self.lengths[node] if node < len(self.lengths) else None

    def stamp_of(self, node: int) -> Optional[Stamp]:
        return self.stamps[node] if node < len(self.stamps) else None

    @property
    def voters(self) -> FrozenSet[int]:
        return self.voter_sets[-1]

    @property
    def may_lead(self) -> bool:
        return self.config.node in self.voters and not self.retired

    @property
    def quorum(self) -> int:
        """How many voters, itself included, a head needs for its authority and for its log."""
        return len(self.voters) // 2 + 1 if self.config.elects else 1

    @property
    def due_at(self) -> float:
        """When a Tick changes something, if nothing else comes before."""
        if self.role is Role.HEAD:
            return self.beat_at
        if self.role is not Role.FOLLOWER:
            return self.round_ends_at
        if not self.may_lead:
            return float("inf")
        return max(self.campaign_at, self.heard_at + self.config.lease)

    @property
    def last_epoch(self) -> int:
        return self.log[-1].epoch if self.log else 0


# --- events


class Tick(NamedTuple):
    at: float


class Proposed(NamedTuple):
    """The head wants to add an entry to the log. Without authority it is dropped: statuses are repeated.

    `more`: further entries, which travel in the same beats.
    """

    text: str
    at: float
    more: Tuple[str, ...] = ()


class Admitted(NamedTuple):
    """A node has a link to the head. It may have been added to the run, and not vote yet."""

    node: int
    at: float


class Resigned(NamedTuple):
    """The head does not want to lead any more. It votes until its recorder ends, and is no candidate again."""

    at: float


class Received(NamedTuple):
    sender: int
    message: "Message"
    at: float


Event = Union[Tick, Proposed, Admitted, Resigned, Received]

# --- messages between nodes


class Beat(NamedTuple):
    """From the head: its lease, and what the log has after the first `length` entries, whose digest is `digest`."""

    epoch: int
    sent: Stamp
    echo: Optional[Stamp]  # the newest that the head has of the receiver
    remaining: float  # s of the head's authority, from when it received the echo
    length: int
    digest: str
    entries: Tuple[Entry, ...]
    committed: int


class Ack(NamedTuple):
    """To the head. With a later `epoch`, the beat was refused."""

    epoch: int
    beat: Stamp  # `sent` of the beat
    stamp: Stamp
    length: int  # verified


class Ask(NamedTuple):
    """A candidate asks for a vote for `epoch`; `trial`: whether it would get one. The rest describes its log."""

    epoch: int
    trial: bool
    round: int
    last_epoch: int
    length: int
    digest: str
    committed: int


class Answer(NamedTuple):
    """A voter's answer. `epoch`: its own."""

    epoch: int
    trial: bool
    round: int
    granted: bool


class Copy(NamedTuple):
    """To a candidate whose log is older: what the voter's has after the first `length` entries.

    A witness may be the last that has an entry, and it cannot lead.
    """

    epoch: int
    last_epoch: int
    total: int
    length: int
    digest: str
    entries: Tuple[Entry, ...]


Message = Union[Beat, Ack, Ask, Answer, Copy]

# --- actions, to be carried out in their order: what is saved or written must be on disk before anything is sent


class Save(NamedTuple):
    ballot: Ballot


class Write(NamedTuple):
    """Cut the log on disk to `length` entries, and append `entries`."""

    length: int
    entries: Tuple[Entry, ...]


class Send(NamedTuple):
    node: int
    message: Message


class Permit(NamedTuple):
    """The ranks of this node may run until then. A permit that has lapsed stays so for the ranks that ran under it."""

    until: float
    epoch: int


Action = Union[Save, Write, Send, Permit]


# --- the log


def digest(before: str, entry: Entry) -> str:
    """The digest of a log whose digest was `before`, with one more entry."""
    return hashlib.sha256(("%s %d %s" % (before, entry.epoch, entry.text)).encode("utf-8")).hexdigest()


def write(state: State, length: int, entries: Tuple[Entry, ...]) -> State:
    """Cut the log to `length` and append `entries`."""
    digests, voter_sets = list(state.digests[: length + 1]), list(state.voter_sets[: length + 1])
    for entry in entries:
        digests.append(digest(digests[-1], entry))
        changed = voters_of(entry)
        voter_sets.append(voter_sets[-1] if changed is None else changed)
    return state._replace(log=state.log[:length] + entries, digests=tuple(digests), voter_sets=tuple(voter_sets))


def voters_of(entry: Entry) -> Optional[FrozenSet[int]]:
    """The nodes that vote from this entry on; None: those that did before. Raises ValueError, KeyError, TypeError."""
    if not entry.text.startswith(_VOTERS):
        return None
    return frozenset(json.loads(entry.text)["fields"]["nodes"])


# The names that messages have on the link.
MESSAGES: Dict[str, Callable[..., Any]] = {"Beat": Beat, "Ack": Ack, "Ask": Ask, "Answer": Answer, "Copy": Copy}


def first_ballot(config: Config) -> Ballot:
    """The ballot of a node that has received nothing yet: the first candidate leads, as if all had voted for it."""
    head = config.candidates[0]
    return Ballot(FIRST_EPOCH, head, leads=config.node == head)
