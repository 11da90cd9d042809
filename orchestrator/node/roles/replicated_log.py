"""The events of the gang on a head that was elected, or may be replaced: an event counts when a majority has it."""

import json
import time
from typing import Callable, List, Optional

from ..gang import gang, gang_events
from ..gang.gang_state import NodePhase, Phase, State
from .gang_log import Apply, entry_of, event_of
from .voter import Voter


class CommittedGang:
    """The state after what this node knows to be committed, whether it is the head or not."""

    def __init__(self, voter: Voter, begun: State) -> None:
        self._voter = voter
        self._state = begun
        self._applied = 0  # so many entries are in `_state`; a committed entry never changes

    def state(self) -> State:
        committed = self._voter.state.committed
        if self._applied < committed:
            for entry in self._voter.state.log[self._applied : committed]:
                self._state, _ = gang.step(self._state, event_of(json.loads(entry.text)))
            self._applied = committed
        return self._state


class ReplicatedLog:
    """`state`: after all entries, from which further events follow. `committed`: after those that a majority has.

    Until the run is started there are no entries: a node with an empty log is never elected. And from its verdict on,
    nobody has to agree any more: what follows are only the farewells.
    """

    def __init__(self, voter: Voter, begun: State, apply: Apply, propose: Callable[..., None]) -> None:
        """`propose`: gives the texts of entries to the voter, and carries out what follows."""
        self._voter = voter
        self._begun = begun
        self._apply = apply
        self._propose = propose
        self.started_at: Optional[float] = None
        self.state = self.committed = begun
        self._length = 0  # of the log, as far as `state` has it
        self._known = voter.state.length  # entries that were carried out before, by this node or by an earlier head
        self.applied = 0  # so many entries are in `committed`
        self._decided_at = float("-inf")
        self._read()

    def may_add(self, event: gang_events.Event) -> bool:
        """Whether the event can be added now. Otherwise it has to be repeated."""
        if not self._voter.leads or self._is_local(event):
            return self._voter.leads
        return self._voter.has_authority and not self._voter.is_new

    def _is_local(self, event: gang_events.Event) -> bool:
        is_before_the_start = not self._length and not isinstance(event, gang_events.StartRequested)
        return is_before_the_start or self.committed.phase is Phase.OVER

    def add(self, event: gang_events.Event) -> None:
        """Needs `may_add`."""
        if self._is_local(event):
            before = self.committed
            self.committed, actions = gang.step(before, event)
            self.state = self.committed
            self._apply(before, self.committed, actions)
        elif isinstance(event, gang_events.StartRequested) and not self._length:
            self._start(event)
        else:
            self._resume(event.at)
            self._add(event)

    def add_elected(self, event: gang_events.Elected) -> None:
        """The first entry of a new head."""
        self._decided_at = time.monotonic()
        self._write(event)

    def add_voters(self, event: gang_events.Voters) -> None:
        """Needs `may_add`."""
        self._resume(event.at)
        self._write(event)

    def _start(self, event: gang_events.StartRequested) -> None:
        here = [number for number, node in enumerate(self.state.nodes) if node.phase is not NodePhase.ABSENT]
        self.state = self.committed = self._begun
        self._decided_at = time.monotonic()
        state, _ = gang.step(self._begun, event)
        joined = []
        for number in here:
            before, each = state, gang_events.Joined(number, event.at)
            state, _ = gang.step(state, each)
            joined += [each] if state != before else []
        self._write(event, *joined)

    def _resume(self, at: float) -> None:
        """Time without authority, or without a recorder, does not count."""
        now = time.monotonic()
        lapsed = now - self._decided_at > self._voter.state.config.lease
        self._decided_at = now
        if lapsed:
            self._add(gang_events.Resumed(at))

    def _add(self, event: gang_events.Event) -> None:
        if gang.step(self.state, event)[0] != self.state:
            self._write(event)

    def _write(self, *events: gang_events.Event) -> None:
        self._propose(*(json.dumps(entry_of(event)) for event in events))
        self._read()

    def _read(self) -> None:
        length = self._voter.state.length
        self.state, self._length = self._replay(self.state, self._length, length), length

    def _replay(self, state: State, begin: int, end: int) -> State:
        for event in self._events(begin, end):
            state, _ = gang.step(state, event)
        return state

    def _events(self, begin: int, end: int) -> List[gang_events.Event]:
        events = [event_of(json.loads(entry.text)) for entry in self._voter.state.log[begin:end]]
        for event in events:
            if isinstance(event, gang_events.StartRequested) and self.started_at is None:
                self.started_at = event.at
        return events

    def apply_committed(self) -> None:
        """Carry out what follows from entries that a majority has by now."""
        while self._voter.is_current and self.applied < self._voter.state.committed:
            (event,) = self._events(self.applied, self.applied + 1)
            self.applied += 1
            before = self.committed
            self.committed, actions = gang.step(before, event)
            if before.phase is Phase.OVER:
                self.state = self.committed
            if self.applied > self._known:
                self._apply(before, self.committed, actions)
