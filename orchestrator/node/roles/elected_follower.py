"""A node that is not the head, in a run that can elect another one: it follows whoever is elected."""

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..gang import drain, gang_events, gang_orders
from ..gang.election_state import SHORTER, SILENT_BEATS, Beat, Message
from ..gang.gang_state import State
from ..guard.permit import clock
from ..link.link import beat
from ..link.messages import Malformed, OfHead
from ..link.peers import RecorderApi
from . import narration, shown_state
from .detour import Received
from .election_messages import decode
from .follower import WorkerLink
from .transport import Transport
from .voter import Voter


class ElectedFollower(WorkerLink):
    """Its permits come from the election. It keeps no clock with the head, as beats and their answers do that."""

    def __init__(
        self,
        recorder: RecorderApi,
        transport: Transport,
        voter: Voter,
        receive: Callable[[int, Dict[str, Any]], Optional[Message]],
        committed: Callable[[], State],
        head: int,
    ) -> None:
        """`committed`: the gang, as far as this node knows that a majority has it."""
        self._leader = {"epoch": voter.epoch, "head": head}
        self._committed = committed
        self._voter = voter
        super().__init__(recorder, transport)
        self._receive = receive
        self._head = head
        self._missing: List[int] = []  # the hosts that the log says this node waits for
        until = voter.state.permit_until
        if until > float("-inf"):  # it has led until now: it waits no longer than the others, which it heard last then
            self._heard_at -= max(0.0, clock() - (until - SHORTER * voter.state.config.lease))

    def follow(self, head: int) -> None:
        leader = {"epoch": self._voter.epoch, "head": head}
        if leader != self._leader:
            self._leader = leader
            self._show(None)
        if head != self._head:
            self.close()
            self._head = head
            self._rank_network.leave_head()
            self._order = None
            self._redial_at = 0.0

    def _leadership(self) -> Dict[str, int]:
        return self._leader

    def _added(self) -> List[Dict[str, Any]]:
        return shown_state.added(self._committed().nodes, self._spec)

    def _drained(self) -> List[str]:
        return drain.left_hosts(self._committed())

    def close(self) -> None:
        for link in self._to_head():
            link.close()
        self._link = self._next = None

    def _endpoint(self) -> Tuple[Sequence[str], int]:
        contact = self._contacts.get(self._head)
        if contact is None or contact.port is None:
            return super()._endpoint()
        return contact.addresses, contact.port

    def _take(self, message: OfHead) -> None:
        super()._take(message)
        if message.election is not None:
            self._receive(self._head, {"election": message.election})

    def _obey(self, message: OfHead, order: gang_events.Order) -> None:
        """Only with a beat of the newest head, and an order to run only as long as the permit of that beat."""
        try:
            beat = decode(message.election)
        except Malformed:
            return
        if not isinstance(beat, Beat) or beat.epoch < self._voter.epoch:
            return
        if not isinstance(order, gang_events.Run) or self._voter.order_is_valid(beat):
            self._carry_out(order, self._voter.permit_of(beat))

    def on_detour_message(self, received: Received) -> None:
        sender, target, message = received.envelope
        is_of_head = sender == self._head and "order" in message
        if target == self._spec["node"] and "election" in message and not is_of_head:
            self._receive(sender, message)
            return
        super().on_detour_message(received)

    def deliver(self, number: int, message: Dict[str, Any]) -> bool:
        """Send a message to the head on the link. False if this is not the head, or seems not to hear us there."""
        if number != self._head:
            return False
        now = time.monotonic()
        if self._link is None or not self._link.ready:
            if self._is_on_detour(now):
                self._send_by_detour(message)
            return False
        self._beat_at = now + beat(self._lease)
        self._send(dict(message, **self._report(now - self._link.heard_at)))  # one message wakes the head less than two
        return self._is_heard()

    def _is_heard(self) -> bool:
        """Whether the newest permit follows from a stamp that is not older than some beats."""
        config, until = self._voter.state.config, self._voter.state.permit_until
        is_first = until == float("-inf")
        return is_first or clock() - (until - SHORTER * config.lease) < SILENT_BEATS * config.beat

    def due(self) -> float:
        """While beats come, they wake it often enough."""
        link = self._link
        if link is None or not link.ready or time.monotonic() - link.heard_at > 2 * self._voter.state.config.beat:
            return super().due()
        return beat(self._lease)

    def on_permit(self, until: float) -> None:
        """The head has heard us, and a majority has heard it."""
        self._heard_at = time.monotonic()
        self._voter.missed, self._voter.head_answered = [], False
        self._recorder.permit(until - clock())
        if self._fenced and not self._ended:
            self._fenced = False
            self._reporter.hear_head()
            self._missing = []
            self._show(None)
            self._recorder.say("%s is the head" % self._head_host)

    def _on_heard(self, sent_at: float) -> None:
        """An echo or a handshake renews nothing here."""

    def _beat(self, unheard: float) -> None:
        self._send_directly(self._report(unheard))

    def _report(self, unheard: float) -> Dict[str, Any]:
        return dict(self._of_ranks(), unheard=unheard)

    @property
    def _head_host(self) -> str:
        return self._host(self._head)

    def _host(self, number: int) -> str:
        """It may have been added after this node began."""
        nodes = self._committed().nodes
        return nodes[number].host if number < len(nodes) else "node %d" % number

    def _why_fenced(self) -> str:
        if self._head == self._spec["node"]:
            return ""  # it has led, and said why it stops
        if self._committed().hands_over:
            return "%s leaves the run, and leads no longer%s" % (self._head_host, self._what_follows())
        if self._head_answers():
            return "the head (%s) reaches no majority of the hosts: stopping%s" % (
                self._head_host,
                self._what_follows(),
            )
        return super()._why_fenced()

    def _head_answers(self) -> bool:
        """Whether its beats come. Of a head that is lost, the last one may have come a little after the last permit."""
        link, patience = self._link, SILENT_BEATS * self._voter.state.config.beat
        return link is not None and link.ready and time.monotonic() - link.heard_at < patience

    @property
    def _head_votes_alone(self) -> bool:
        """Nobody can be elected in its place."""
        return self._voter.state.voters == {self._head}

    @property
    def _needs_majority(self) -> bool:
        return not self._head_votes_alone

    def _what_follows(self) -> str:
        if self._head_votes_alone:
            return super()._what_follows()
        return "; the hosts that are left elect another head"

    def _fence(self, now: float) -> None:
        verdict = None if self._ended else self._committed().verdict
        if verdict is not None:
            self._ended = True
            self._reporter.hear_end(verdict)
            self._recorder.command({"do": "end", "verdict": verdict})
            return
        self._voter.head_answered = self._voter.head_answered or (not self._fenced and self._head_answers())
        super()._fence(now)
        missing = self._voter.unreached
        gives_up_soon = now - self._heard_at > self._rejoin_timeout  # and so do the others: they are not lost
        is_news = missing != self._missing and not (self._missing and gives_up_soon)
        if missing and is_news and not self._ended and now - self._heard_at > 2 * self._lease:
            self._missing = missing
            wait = narration.duration(self._rejoin_timeout)
            what = "no majority of the hosts answers (silent: %s): waiting up to %s for them"
            self._recorder.say(what % (", ".join(self._awaited()), wait))
            self._show("waiting", self._awaited())
            super()._tell_for_the_head("waiting")

    def _awaited(self) -> List[str]:
        """Nobody, while another head may be elected."""
        if self._head_votes_alone:
            return super()._awaited()
        return [self._host(number) for number in self._voter.unreached]

    def _head_lost(self) -> Dict[str, Any]:
        """Without a majority, it is the hosts that did not answer first."""
        lost = super()._head_lost()
        first, *others = self._voter.missed or [self._head]
        if not self._voter.missed:
            return lost
        also = ", and %s as well" % ", ".join(map(self._host, others)) if others else ""
        return dict(lost, host=self._host(first), node=first, what="host lost%s, so no majority is left" % also)

    def _tells(self) -> bool:
        """Without a majority, the first host that waits for it does. The last to give up reaches nobody any more."""
        missing = self._missing or self._voter.unreached
        if not missing:
            return super()._tells()
        left = self._voter.state.voters.difference(missing)
        return min(left, default=None) == self._spec["node"] and not self._is_stranger

    def _others_run(self) -> bool:
        return gang_orders.label(self._committed()) == "running"

    def _tells_of_stop(self) -> bool:
        """Between the head that has left the lead and the next one, nobody else does."""
        gang = self._committed()
        others = self._voter.state.voters.difference({gang.head})
        return gang.hands_over and min(others, default=None) == self._spec["node"]

    @property
    def _is_stranger(self) -> bool:
        """Whether this host was booted, and has had no head since: the run may have been stopped meanwhile."""
        return bool(self._recorder.reported["restarted"]) and self._voter.state.permit_until == float("-inf")

    def _tell_for_the_head(self, label: str) -> None:
        if label != "waiting" or self._head_votes_alone:  # else the next head tells what follows
            super()._tell_for_the_head(label)
