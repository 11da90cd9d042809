"""The election on one node: election.step with the clock and the disk of this node."""

from typing import Any, Dict, FrozenSet, List, Optional, Set, Union

from ..gang import election, election_log
from ..gang.election_state import (
    SHORTER,
    Action,
    Admitted,
    Beat,
    Config,
    Event,
    Message,
    Permit,
    Proposed,
    Received,
    Resigned,
    Role,
    Save,
    Send,
    Tick,
    Write,
    first_ballot,
)
from ..gang.gang_state import KILL_WINDOW
from ..guard.permit import clock
from ..host import state as host_state
from ..link.link import lease
from .election_disk import ElectionDisk

Outgoing = Union[Send, Permit]


def config_of(spec: Dict[str, Any]) -> Config:
    nodes = spec["nodes"]
    candidates = tuple(number for number, node in enumerate(nodes) if not node.get("witness"))
    first = sum(not node.get("added") for node in nodes)
    return Config(spec["node"], first, candidates, lease(spec), KILL_WINDOW, elects=True)


class Voter:
    """Each method returns what is to be carried out. What has to be on disk before that is on disk."""

    def __init__(self, folder: str, spec: Dict[str, Any]) -> None:
        self._disk = ElectionDisk(folder)
        config = config_of(spec)
        ballot = self._disk.ballot() or first_ballot(config)
        self.state = election.begin(config, ballot, self._disk.log(), host_state.boot_id(), clock())
        self._answered: Set[int] = set()  # in the round that this node asks in
        self.unreached: List[int] = []  # the voters without which its last round had no majority
        self.head_answered = False  # when the ranks here were stopped, because it had no majority
        self.missed: List[int] = []  # without which there was none at first, since a head wrote to the log last

    def due(self) -> float:
        """Seconds until `tick` has to be called."""
        return max(0.0, self.state.due_at - clock())

    def tick(self) -> List[Outgoing]:
        now = clock()
        return self._step(Tick(now)) if now >= self.state.due_at else []

    def receive(self, sender: int, message: Message) -> List[Outgoing]:
        self._answered.add(sender)
        return self._step(Received(sender, message, clock()))

    def propose(self, text: str, *more: str) -> List[Outgoing]:
        return self._step(Proposed(text, clock(), more))

    def admit(self, node: int) -> List[Outgoing]:
        return self._step(Admitted(node, clock()))

    def resign(self) -> None:
        self._step(Resigned(clock()))

    def _step(self, event: Event) -> List[Outgoing]:
        before = self.state.role
        self.state, actions = election.step(self.state, event)
        if before is not self.state.role:
            self._follow_round(before)
        return [action for action in actions if self._is_outgoing(action)]  # type: ignore[misc]

    def _follow_round(self, before: Role) -> None:
        voters, here = self.state.voters, self.state.config.node
        if self.state.role is Role.TRIAL:
            self._answered = set()
        elif before is Role.TRIAL:
            silent = voters - self._answered - {here}
            self.unreached = sorted(silent) if len(voters) - len(silent) < self.state.quorum else []
            self.missed = self.missed or self.unreached

    def _is_outgoing(self, action: Action) -> bool:
        if isinstance(action, Save):
            self._disk.save(action.ballot)
        elif isinstance(action, Write):
            self._disk.write(action.length, action.entries)
        return isinstance(action, (Send, Permit))

    @property
    def epoch(self) -> int:
        return self.state.ballot.epoch

    @property
    def leads(self) -> bool:
        return self.state.role is Role.HEAD

    @property
    def has_authority(self) -> bool:
        return election.has_authority(self.state, clock())

    def silence_of_head(self) -> Optional[float]:
        """Seconds since this node has heard another head; None: not since it began."""
        heard_at = self.state.heard_at
        return clock() - heard_at if heard_at > self.state.begun_at else None

    def silent(self) -> List[int]:
        """The voters whose answers are too old to count for the authority of this head."""
        state, since = self.state, clock() - SHORTER * self.state.config.lease
        return [node for node in sorted(state.voters - {state.config.node}) if state.acknowledged[node] <= since]

    @property
    def is_current(self) -> bool:
        """Whether this head knows all that earlier heads have committed."""
        return election_log.is_current(self.state)

    @property
    def is_new(self) -> bool:
        """Whether this head has not written anything to the log of the run yet."""
        return bool(self.state.log) and self.state.last_epoch < self.epoch

    @property
    def may_start_attempts(self) -> bool:
        return election.may_start_attempts(self.state, clock())

    def may_change_to(self, voters: FrozenSet[int]) -> bool:
        return election_log.may_change_voters(self.state, voters)

    def beat_for(self, node: int) -> Beat:
        return election.beat_for(self.state, node, clock())

    def order_is_valid(self, beat: Beat) -> bool:
        """Whether an order to run that came with this beat may be obeyed now."""
        return election.order_is_valid(self.state, beat, clock())

    def permit_of(self, beat: Beat) -> float:
        """Until when an order to run that came with this beat may be obeyed."""
        until = election.permit_until(self.state, beat, clock())
        return float("-inf") if until is None else until
