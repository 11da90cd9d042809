"""The head of a run that can elect another one: it decides with the authority of a majority, or not at all."""

import contextlib
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..gang import drain, gang_events, gate, newcomers, team
from ..gang.election_state import SILENT_BEATS, Ack, Message
from ..gang.gang_state import GONE, NodePhase, Phase, State, problems
from ..guard import team_requests
from ..host import network
from ..link import messages
from ..link.link import BEAT, Link
from ..link.peers import RecorderApi
from ..recorder import wait_news
from .detour import Received
from .election_messages import encode
from .gang_log import EventLog, first_state
from .head import HeadLink, order_message
from .replicated_log import ReplicatedLog
from .transport import Transport
from .voter import Voter


class ElectedHead(HeadLink):
    """Orders travel with a beat, and follow from entries of the log that a majority has.

    An event that comes while the head has no authority is dropped. Afterwards, everybody's last status is looked at
    once more.
    """

    def __init__(
        self,
        recorder: RecorderApi,
        transport: Transport,
        voter: Voter,
        receive: Callable[[int, Dict[str, Any]], Optional[Message]],
        propose: Callable[..., None],
        admit: Callable[[int], None],
    ) -> None:
        """`receive`: gives a message of a node to the election, and returns it. `propose`: an entry of the log.

        `admit`: a node that has a link.
        """
        self._voter = voter
        self._receive = receive
        self._propose = propose
        self._admit = admit
        self._statuses: Dict[int, Any] = {}  # the last of each node
        self._has_dropped = True  # an event: those of this node at least, from before it was the head
        self._has_announced = False  # the orders that follow from what earlier heads have decided
        self._had_authority = False
        self._looked_at: Optional[State] = None
        self._runs = False  # all ranks, in the state that was looked at
        self._undecided: List[Tuple[Dict[str, Any], int]] = []  # requests, and how long the log was with each
        super().__init__(recorder, transport)

    def _open_log(self) -> EventLog:
        self._entries = ReplicatedLog(self._voter, first_state(self._spec), self._apply, self._propose)
        return self._entries

    def close(self) -> None:
        """Another node is the head now, and tells whether the run waits."""
        wait_news.supersede(self._recorder.folder)
        self._resumption.close()
        for link in self._nodes.values():
            link.close()
        self._nodes.clear()

    def due(self) -> float:
        """While nothing happens, it wakes for the beats of the election only, and looks at all else at every other."""
        config = self._voter.state.config
        if self._is_settled() and self._watch.longest_silence(self._expected(), time.monotonic()) < 2 * config.beat:
            return 2 * min(BEAT, config.beat)
        return super().due()

    def _is_settled(self) -> bool:
        if self._state is not self._looked_at:  # else nothing has changed since the last turn
            self._looked_at = self._state
            starts = any(node.phase is NodePhase.JOINED for node in self._state.members)
            self._runs = self._state.phase is Phase.RUNNING and not starts
        return self._runs and not self._finisher.is_at_work

    # messages

    def join(self, link: Link, received: List[Dict[str, Any]]) -> None:
        self._catch_up()
        if link.peer is not None and link.peer < len(self._state.nodes):
            self._admit(link.peer)
        super().join(link, received)
        if link.peer in self._nodes and self._has_announced:
            self._send_current_order(link.peer)

    def _on_message(self, number: int, message: Dict[str, Any]) -> None:
        if "election" in message:
            self._on_election(number, message)
        self._catch_up()
        if "status" in message:
            self._statuses[number] = message["status"]
        super()._on_message(number, message)

    def _on_election(self, number: int, message: Dict[str, Any]) -> None:
        if isinstance(self._receive(number, message), Ack):
            # only this: the permit of a node that is lost must not have been renewed by anything it sent later
            self._watch.hear(number, time.monotonic())

    def _on_direct_message(self, link: Link, number: int, message: Dict[str, Any]) -> None:
        if "unheard" in message:
            self._watch.hear_unheard(number, link.heard_at, messages.seconds(message["unheard"]))
            news = self._news(number)
            if news:
                self._send(link, news)

    def on_detour_message(self, received: Received) -> None:
        sender, target, message = received.envelope
        if target != self._here:
            return
        has_joined = sender in self._watch.known() and self._state.nodes[sender].phase not in GONE
        if has_joined and "clock" in message:
            super().on_detour_message(received)
        elif "election" in message:
            self._on_election(sender, message)  # it may have to join, but it votes

    def _hear_by_detour(self, number: int, helper: int, message: Dict[str, Any]) -> None:
        if "election" in message:
            super()._hear_by_detour(number, helper, message)

    def deliver(self, number: int, message: Dict[str, Any]) -> bool:
        """Send a message on the link of a node. False if it has none, or does not hear us there."""
        if number not in self._nodes:
            return False
        self._send(self._nodes[number], message)
        return self._watch.unheard(number, time.monotonic()) < SILENT_BEATS * self._voter.state.config.beat

    # decisions

    def _step(self, event: gang_events.Event) -> None:
        if self._entries.may_add(event):
            self._entries.add(event)
        else:
            self._has_dropped = True

    def on_election_step(self) -> None:
        """A majority may have more entries now."""
        self._entries.apply_committed()
        self._answer_requests()
        if self._voter.is_current and not self._has_announced:
            self._has_announced = True
            if wait_news.reported_since(self._recorder.folder) is not None:
                wait_news.close_report(self._recorder.folder)  # the head tells what follows
            self._admit_all()
            self._teller.tell_of_end(self._entries.committed)  # an earlier head may have been lost before it did
            for number in [self._here, *self._nodes]:
                self._send_current_order(number)

    def _admit_all(self) -> None:
        """Those that do not vote get no beats otherwise, and would not learn who is the head."""
        for number, node in enumerate(self._entries.committed.nodes):
            if number != self._here and node.phase not in GONE:
                self._admit(number)

    def _decide(self) -> None:
        now = self._now()
        if self._voter.is_new and self._voter.has_authority:
            resigned = self._state.head == self._here or self._voter.head_answered or team.gives_way(self._state)
            silent = self._voter.missed if resigned else []
            silence = None if resigned else self._voter.silence_of_head()
            heard_at = None if silence is None else now - silence
            event = gang_events.Elected(self._here, self._meeting_address(), now, resigned, silent, heard_at)
            self._entries.add_elected(event)
            self._voter.missed, self._voter.head_answered = [], False
        may_add = self._entries.may_add(gang_events.Tick(now))
        self._say_authority(may_add)
        if not may_add:
            return
        self._repeat_dropped()
        super()._decide()
        self._update_voters(now)
        committed = self._entries.committed
        if committed.head == self._here and (drain.can_resign(committed) or self._gives_way(committed)):
            self._voter.resign()  # the role changes after this tick

    def _gives_way(self, committed: State) -> bool:
        if self._voter.state.voters <= {self._here}:
            return False
        if self._networks.cuts_off_head(committed):
            self._transport.rank_network.presume_cut()
            self._recorder.say("no other host reaches this one on the network of the ranks: it gives up the lead")
            return True
        if team.gives_way(committed):
            why = gate.describe(problems(committed, self._here))
            self._recorder.say("this host is not healthy (%s): it gives up the lead" % why)
            return True
        return False

    def _update_voters(self, now: float) -> None:
        """One host at a time: one that was added votes as soon as it has the log, one that was drained does not."""
        committed, voters = self._entries.committed, self._voter.state.voters
        if committed.phase is Phase.OVER:
            return
        for number in sorted(newcomers.voters(committed) ^ voters):
            if self._voter.may_change_to(voters ^ {number}):
                self._entries.add_voters(gang_events.Voters(sorted(voters ^ {number}), now))
                return

    def _take_request(self, request: Dict[str, Any]) -> None:
        """The answer waits until a majority has the request: nothing may follow from one that a new head forgets."""
        event = team_requests.event_of(request, self._spec["grace"], self._now())
        if request["id"] in self._team_requests:
            return
        if not self._entries.may_add(event):
            self._has_dropped = True
            return
        self._team_requests.add(request["id"])
        self._step(event)
        self._undecided.append((request, self._voter.state.length))
        self._answer_requests()  # one that changes nothing is no entry of the log

    def _answer_requests(self) -> None:
        if not self._undecided:
            return
        applied = self._entries.applied
        for request, length in [undecided for undecided in self._undecided if undecided[1] <= applied]:
            self._undecided.remove((request, length))
            answer = team_requests.answer_of(request, self._entries.committed)
            self._recorder.command({"do": "team answer", "id": request["id"], "answer": answer})

    def _say_authority(self, has_authority: bool) -> None:
        if self._had_authority and not has_authority:
            self._voter.missed = self._voter.silent()
            self._recorder.say(
                "no majority of the hosts answers (silent: %s): stopping; the others may elect another head"
                % ", ".join(self._state.nodes[number].host for number in self._voter.missed)
            )
        self._had_authority = has_authority

    def _catch_up(self) -> None:
        """Before anything newer: the guard here was killed, perhaps, and the ranks of other hosts fail of that."""
        if self._has_missed and self._answered and self._entries.may_add(gang_events.Tick(self._now())):
            self._repeat_dropped()

    @property
    def _has_missed(self) -> bool:
        return self._has_dropped or bool(self._voter.missed)

    def _repeat_dropped(self) -> None:
        if not self._has_missed:
            return
        if self._voter.missed:
            self._entries.add(gang_events.NoMajority(self._voter.missed, self._now()))
            self._voter.missed = []
        self._has_dropped = False
        for number in list(self._nodes):
            self._step(gang_events.Joined(number, self._now()))
        self.on_status(self._recorder.reported)
        for number, status in list(self._statuses.items()):
            self._on_node_status(number, messages.status(status))

    def _find_port(self) -> None:
        if self._voter.may_start_attempts:
            super()._find_port()

    def _new_master_addr(self) -> str:
        return self._meeting_address()

    def _meeting_address(self) -> str:
        """An address of this host at which the others reach it: for the first head, the one that was chosen for it.

        For another one, the one in the network of the head before: it was checked, and firewalls may be open there.
        """
        start = self._recorder.reported["start"]
        if start is not None:
            return str(start["master_addr"])
        with contextlib.suppress(OSError):  # no route: the network is gone
            address = network.source_address(self._state.master_addr)
            if address in self._spec["contact"]["addresses"]:
                return address
        reached = Counter(link.local_address() for link in self._nodes.values()).most_common(1)
        return reached[0][0] if reached else str(self._spec["contact"]["addresses"][0])

    def own_address(self) -> Optional[str]:
        return self._meeting_address()

    # orders

    def _send_order(self, number: int, order: gang_events.Order) -> None:
        if number == self._here:
            if isinstance(order, gang_events.Run):
                self._transport.rank_network.begin(order)  # for when it is the head no longer
            self._recorder.obey(order, self._voter.state.permit_until)
        elif number in self._nodes:
            self._send(self._nodes[number], self._with_beat(number, order))

    def _with_beat(self, number: int, order: Optional[gang_events.Order]) -> Dict[str, Any]:
        message: Dict[str, Any] = {"election": encode(self._voter.beat_for(number))}
        return message if order is None else dict(message, order=order_message(order))

    def _current_order(self, number: int) -> Optional[gang_events.Order]:
        return self._all_hosts.order_of(self._entries.committed, number) if self._has_announced else None

    def _send_current_order(self, number: int) -> None:
        order = self._current_order(number)
        if order is not None:
            self._send_order(number, order)

    def _beat(self, nodes: List[int], now: float) -> None:
        super()._beat(nodes, now)
        committed = self._entries.committed
        for number, node in enumerate(committed.nodes):
            if committed.phase is Phase.RUNNING and node.phase is NodePhase.JOINED:
                self._send_current_order(number)  # the one before may have come too late to be obeyed

    def _detour_message(self, number: int) -> Dict[str, Any]:
        return self._with_beat(number, self._current_order(number))

    def _leadership(self) -> Dict[str, int]:
        return {"epoch": self._voter.epoch, "head": self._here}
